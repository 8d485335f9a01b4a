"""`AutoRegressiveDecoder`: case S9 with hand-made distributions, sampling by its statistics, beams by brute force."""

import itertools
from collections import namedtuple

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.generation.autoregressive import AutoRegressiveDecoder

END = 0


def decoder_of(table, rtype="probas", **kwargs):
    """A decoder whose next token's distribution is `table(tokens so far)`, and which checks its inputs."""

    class Decoder(AutoRegressiveDecoder):
        calls = 0

        @AutoRegressiveDecoder.wraps(default_rtype=rtype)
        def predict(self, inputs, output_ids, states):
            self.calls += 1
            assert [array.shape for array in inputs] == [(len(output_ids), 2), (len(output_ids), 1)]
            assert states is None
            return np.array([table(tuple(row)) for row in output_ids.tolist()])

    return Decoder(**{"start_id": None, "end_id": END, "maxlen": 3, **kwargs})


INPUTS = [[7, 8], [9]]


def s9a(tokens):
    """First a (1) .55 or end .45, then ten tokens of .1 each, none of them end."""
    row = np.zeros(12)
    if tokens:
        row[2:12] = 0.1
    else:
        row[[1, END]] = 0.55, 0.45
    return row


def test_finished_hypothesis_is_kept():
    decoder = decoder_of(s9a)
    np.testing.assert_array_equal(decoder.beam_search(INPUTS, topk=2), [END])
    (best, score), (second, worse) = decoder.beam_search(INPUTS, topk=2, with_scores=True)
    assert best.tolist() == [END] and np.exp(score) == pytest.approx(0.45)
    assert second[0] == 1 and len(second) == 3 and np.exp(worse) == pytest.approx(0.0055)


@pytest.mark.parametrize("rtype", ["probas", "logits"])
def test_topk_above_the_vocabulary_counts_as_all(rtype):
    def table(tokens):
        row = np.arange(1, 13) / 78
        return row if rtype == "probas" else np.log(row)

    decoder = decoder_of(table, rtype, maxlen=4)
    for topk in (12, 50):
        samples = decoder.random_sample(INPUTS, 20, topk=topk, rng=3)
        wanted = decoder.random_sample(INPUTS, 20, rng=3)
        assert [row.tolist() for row in samples] == [row.tolist() for row in wanted]
    np.testing.assert_array_equal(decoder.beam_search(INPUTS, topk=50), [END])
    assert len(decoder.beam_search(INPUTS, topk=50, with_scores=True)) == 50


@pytest.mark.parametrize("start_id", [None, 5])
def test_end_is_forbidden_before_minlen(start_id):
    decoder = decoder_of(lambda tokens: np.array([0.9, 0.06, 0.04, 0, 0, 0]), start_id=start_id, maxlen=8, minlen=4)
    first = 0 if start_id is None else 1
    samples = decoder.random_sample(INPUTS, 300, rng=0)
    outputs = [*samples, decoder.greedy(INPUTS), decoder.beam_search(INPUTS, topk=3)]
    for output in outputs:
        assert first == 0 or output[0] == 5
        tokens = output[first:].tolist()
        assert END not in tokens[:3] and 4 <= len(tokens) <= 8
        assert tokens.index(END) == len(tokens) - 1 if END in tokens else len(tokens) == 8
    assert outputs[-2][first:].tolist() == outputs[-1][first:].tolist() == [1, 1, 1, END]
    # What is left is renormalised: .6 and .4.
    ones = np.mean([row[first : first + 3] == 1 for row in samples])
    assert abs(ones - 0.6) < 5 * np.sqrt(0.24 / 900)


def test_all_but_the_end_where_nothing_else_is_possible():
    decoder = decoder_of(lambda tokens: np.array([1.0, 0, 0]), maxlen=4, minlen=2)
    samples = decoder.random_sample(INPUTS, 50, rng=0)
    assert {row.tolist()[0] for row in samples} == {1, 2} and all(row[1] == END for row in samples)


DISTRIBUTION = np.array([0.5, 0.3, 0.2])


class Wrapped(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps(default_rtype="probas")
    def predict(self, inputs, output_ids, states):
        return np.tile(DISTRIBUTION, (len(output_ids), 1))


class WrappedByPosition(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps("probas")
    def predict(self, inputs, output_ids, states):
        return np.tile(DISTRIBUTION, (len(output_ids), 1))


class WrappedBare(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps
    def predict(self, inputs, output_ids, states):
        return np.tile(DISTRIBUTION, (len(output_ids), 1))


class Logits(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps("logits")
    def predict(self, inputs, output_ids, states):
        return np.tile(np.log(DISTRIBUTION) + 5, (len(output_ids), 1)).astype("float32")


class Old(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.set_rtype("probas")
    def predict(self, inputs, output_ids, step):
        assert step == output_ids.shape[1] - 1
        return np.tile(DISTRIBUTION, (len(output_ids), 1))


class OldLogits(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.set_rtype("logits")
    def predict(self, inputs, output_ids, step):
        return np.tile(np.log(DISTRIBUTION), (len(output_ids), 1))


class WithStates(AutoRegressiveDecoder):
    @AutoRegressiveDecoder.wraps(use_states=True)
    def predict(self, inputs, output_ids, states):
        return np.tile(DISTRIBUTION, (len(output_ids), 1)), {"step": [np.full(len(output_ids), output_ids.shape[1])]}


@pytest.mark.parametrize("cls", [Wrapped, WrappedByPosition, WrappedBare, Logits, Old, OldLogits, WithStates])
@pytest.mark.parametrize("temperature", [1, 0.5])
def test_all_decorators_give_the_same(cls, temperature):
    settings = {"start_id": 2, "end_id": 0, "maxlen": 5}
    samples = cls(**settings).random_sample(INPUTS, 8, topk=3, topp=0.9, temperature=temperature, rng=1)
    wanted = Wrapped(**settings).random_sample(INPUTS, 8, topk=3, topp=0.9, temperature=temperature, rng=1)
    assert [row.tolist() for row in samples] == [row.tolist() for row in wanted]
    np.testing.assert_array_equal(cls(**settings).beam_search(INPUTS, 2, temperature=temperature), [2, 0])
    np.testing.assert_array_equal(cls(**settings).greedy(INPUTS), [2, 0])


def test_decorated_predict_can_be_called_as_in_bert4keras():
    decoder = Wrapped(None, 0, 5)
    probas, states = decoder.predict([], np.zeros((2, 1), int))
    assert states is None
    np.testing.assert_allclose(probas, [DISTRIBUTION] * 2)
    np.testing.assert_allclose(decoder.predict([], np.zeros((1, 1)), rtype="logits")[0][0], np.log(DISTRIBUTION))
    heated = DISTRIBUTION**2 / np.sum(DISTRIBUTION**2)
    np.testing.assert_allclose(decoder.predict([], np.zeros((1, 1)), None, 0.5)[0][0], heated)


def test_predict_must_be_decorated_and_defined():
    class Plain(AutoRegressiveDecoder):
        def predict(self, inputs, output_ids, states):
            return np.ones((1, 3)) / 3

    with pytest.raises(TypeError, match=r"`predict` of Plain must be decorated with `AutoRegressiveDecoder.wraps"):
        Plain(None, 0, 3).greedy(INPUTS)
    with pytest.raises(NotImplementedError, match="define `predict"):
        AutoRegressiveDecoder(None, 0, 3).predict([], np.zeros((1, 0)))


def chi_square(counts, probas):
    expected = np.array(probas) * np.sum(counts)
    assert not np.any(np.array(counts)[expected == 0])
    real = expected > 0
    statistic = np.sum((np.array(counts)[real] - expected[real]) ** 2 / expected[real])
    freedom = real.sum() - 1
    return statistic < freedom + 5 * np.sqrt(2 * max(freedom, 1))


PROBAS = np.array([0.02, 0.36, 0.08, 0.24, 0.05, 0.16, 0.0, 0.09])


@pytest.mark.parametrize(
    "topk, topp, temperature, kept",
    [
        (None, None, 1, [0, 1, 2, 3, 4, 5, 7]),
        (3, None, 1, [1, 3, 5]),
        (1, None, 1, [1]),
        (None, 0.59, 1, [1, 3]),  # .36 + .24 crosses
        (None, 0.61, 1, [1, 3, 5]),
        (None, 1.0, 1, [0, 1, 2, 3, 4, 5, 7]),
        (None, 0.01, 1, [1]),  # the most probable one at least
        (4, 0.7, 1, [1, 3]),  # .36 + .24 of .85: renormalised .706
        (4, 0.71, 1, [1, 3, 5]),
        (None, None, 0.5, [0, 1, 2, 3, 4, 5, 7]),
        (3, None, 2.0, [1, 3, 5]),
    ],
)
def test_samples_have_the_distribution(topk, topp, temperature, kept):
    decoder = decoder_of(lambda tokens: PROBAS, end_id=1, maxlen=1)
    samples = decoder.random_sample(INPUTS, 20000, topk, topp, temperature=temperature, rng=5)
    wanted = PROBAS ** (1 / temperature)
    wanted[np.setdiff1d(np.arange(8), kept)] = 0
    assert chi_square(np.bincount([int(row[0]) for row in samples], minlength=8), wanted / wanted.sum())


def test_whole_outputs_have_the_probability_of_the_chain():
    """Two steps that depend on each other; rows that end early do not disturb the others."""
    step = {(): [0.3, 0.7, 0], (1,): [0.2, 0.3, 0.5], (1, 1): [1, 0, 0], (1, 2): [0.5, 0.5, 0]}
    decoder = decoder_of(lambda tokens: np.array(step[tokens]), maxlen=3)
    samples = [tuple(row.tolist()) for row in decoder.random_sample(INPUTS, 20000, rng=2)]
    chain = {(0,): 0.3, (1, 0): 0.14, (1, 1, 0): 0.21, (1, 2, 0): 0.175, (1, 2, 1): 0.175}
    assert set(samples) == set(chain)
    assert chi_square([samples.count(output) for output in chain], list(chain.values()))


def test_samples_are_reproducible_and_in_order_of_their_rows():
    decoder = decoder_of(lambda tokens: PROBAS, end_id=1, maxlen=30)
    first, second = (decoder.random_sample(INPUTS, 50, rng=9) for _ in range(2))
    assert [row.tolist() for row in first] == [row.tolist() for row in second]
    generator = np.random.default_rng(9)
    third = decoder.random_sample(INPUTS, 50, rng=generator)
    assert [row.tolist() for row in first] == [row.tolist() for row in third]
    assert [row.tolist() for row in first] != [row.tolist() for row in decoder.random_sample(INPUTS, 50, rng=generator)]
    assert [row.tolist() for row in first] != [row.tolist() for row in decoder.random_sample(INPUTS, 50)]
    lengths = [len(row) for row in first]
    assert lengths != sorted(lengths)  # bert4keras returns what finished first first


def test_first_step_is_predicted_once_and_finished_rows_are_dropped():
    rows = []

    class Counting(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps("probas")
        def predict(self, inputs, output_ids, states):
            rows.append(len(output_ids))
            assert len(inputs[0]) == len(output_ids)
            return np.tile([0.5, 0.5], (len(output_ids), 1))

    Counting(None, 0, 20).random_sample(INPUTS, 64, rng=0)
    assert rows[0] == 1 and rows[1] < 64 and rows == sorted(rows[:1]) + sorted(rows[1:], reverse=True)


def test_several_ends():
    step = {(): [0.1, 0.9], (1,): [0.8, 0.2], (1, 0): [0.3, 0.7], (1, 0, 1): [0.9, 0.1]}
    decoder = decoder_of(lambda tokens: np.array(step[tokens]), maxlen=4)
    assert decoder.greedy(INPUTS).tolist() == [1, 0]
    assert decoder.greedy(INPUTS, min_ends=2).tolist() == [1, 0, 1, 0]
    # Before `minlen` only the end that would finish the output is forbidden.
    decoder = decoder_of(lambda tokens: np.array([0.9, 0.1]), maxlen=6, minlen=4)
    assert decoder.greedy(INPUTS, min_ends=2).tolist() == [0, 1, 1, 0]
    assert decoder.beam_search(INPUTS, 1, min_ends=2).tolist() == [0, 1, 1, 0]


def test_states_follow_their_rows():
    """The state is the sum of the tokens of a row, in every container; it decides what comes next."""
    Pair = namedtuple("Pair", "sum rest")

    class Summing(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps(use_states=True)
        def predict(self, inputs, output_ids, states):
            sums = output_ids.sum(1)
            if states is not None:
                before = output_ids[:, :-1].sum(1)
                for value in (states[0].sum, states[0].rest["a"], states[1][0]):
                    np.testing.assert_array_equal(value, before)
            probas = np.stack([0.2 + 0.01 * sums, 0.5 - 0.02 * sums, 0.3 + 0.01 * sums], axis=1)
            return probas, (Pair(sums, {"a": sums}), [sums])

    decoder = Summing(None, 0, 6)
    decoder.random_sample(INPUTS, 30, rng=1)
    decoder.beam_search(INPUTS, 4)
    decoder.greedy(INPUTS)


def brute_force(table, maxlen, vocabulary, minlen=1):
    """[(output, log-probability)] of all outputs that end, or have `maxlen` tokens."""
    outputs = []
    for length in range(1, maxlen + 1):
        for tokens in itertools.product(range(vocabulary), repeat=length):
            if END in tokens[:-1] or (tokens[-1] != END and length < maxlen) or (tokens[-1] == END and length < minlen):
                continue
            total = sum(np.log(max(table(tokens[:i])[t], 1e-30)) for i, t in enumerate(tokens))
            outputs.append((tokens, total))
    return outputs


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 3))
@settings(max_examples=40)
def test_wide_beam_finds_the_best_outputs(seed, length_penalty, minlen):
    tables = {}

    def table(tokens):
        rng = np.random.default_rng([seed, len(tokens), *tokens])
        return tables.setdefault(tokens, rng.dirichlet(np.ones(4)))

    decoder = decoder_of(table, maxlen=4, minlen=minlen)
    found = decoder.beam_search(INPUTS, topk=64, length_penalty=length_penalty, with_scores=True)
    outputs = [(tokens, total / len(tokens) ** length_penalty) for tokens, total in brute_force(table, 4, 4, minlen)]
    outputs.sort(key=lambda output: -output[1])
    for (ids, score), (tokens, wanted) in zip(found[:10], outputs[:10], strict=True):
        assert score == pytest.approx(wanted)
        assert tuple(ids.tolist()) == tokens
    assert decoder.beam_search(INPUTS, 64, length_penalty=length_penalty).tolist() == list(outputs[0][0])


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_beam_of_one_is_greedy(seed):
    def table(tokens):
        return np.random.default_rng([seed, *tokens]).dirichlet(np.ones(5))

    decoder = decoder_of(table, maxlen=6)
    assert decoder.beam_search(INPUTS, 1).tolist() == decoder.greedy(INPUTS).tolist()


def test_beam_stays_full_beside_finished_hypotheses():
    """With a beam of two, the second live hypothesis is the one that wins."""
    step = {(): [0.4, 0.35, 0.25], (1,): [0.1, 0.45, 0.45], (2,): [0.98, 0.01, 0.01]}
    decoder = decoder_of(lambda tokens: np.array(step.get(tokens, [0.4, 0.3, 0.3])), maxlen=4)
    found = [row.tolist() for row, _ in decoder.beam_search(INPUTS, 2, with_scores=True)]
    assert found == [[0], [2, 0]]


def test_length_penalty_favours_longer_outputs():
    step = {(): [0.5, 0.5], (1,): [0.2, 0.8], (1, 1): [1.0, 0.0]}
    decoder = decoder_of(lambda tokens: np.array(step[tokens]), maxlen=3)
    assert decoder.beam_search(INPUTS, 2).tolist() == [0]
    (best, score), *_ = decoder.beam_search(INPUTS, 2, length_penalty=1.0, with_scores=True)
    assert best.tolist() == [1, 1, 0] and score == pytest.approx(np.log(0.4) / 3)


def test_beam_search_stops_when_nothing_can_get_better():
    decoder = decoder_of(lambda tokens: np.array([0.9, 0.05, 0.05]), maxlen=50)
    assert decoder.beam_search(INPUTS, 1).tolist() == [0] and decoder.calls == 1
    assert decoder.beam_search(INPUTS, 3).tolist() == [0] and decoder.calls <= 4


def test_output_without_end_has_maxlen_tokens():
    decoder = decoder_of(lambda tokens: np.array([0.0, 0.6, 0.4]), maxlen=3)
    assert decoder.greedy(INPUTS).tolist() == [1, 1, 1] == decoder.beam_search(INPUTS, 2).tolist()
    assert all(len(row) == 3 for row in decoder.random_sample(INPUTS, 5, rng=0))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda d: d.random_sample(INPUTS, 0), "`n` must be an int of at least 1; received 0"),
        (lambda d: d.random_sample(INPUTS, 1, topk=0), "`topk` must be an int of at least 1; received 0"),
        (lambda d: d.random_sample(INPUTS, 1, topp=0.0), r"`topp` must be in \(0, 1\]; received 0.0"),
        (lambda d: d.random_sample(INPUTS, 1, topp=1.5), "`topp`.*received 1.5"),
        (lambda d: d.random_sample(INPUTS, 1, temperature=0), "`temperature` must be positive; received 0.*greedy"),
        (lambda d: d.beam_search(INPUTS, 0), "`topk` must be an int of at least 1"),
        (lambda d: d.beam_search(INPUTS, 1, length_penalty=-1), "`length_penalty`.*received -1"),
    ],
)
def test_bad_argument_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(decoder_of(lambda tokens: DISTRIBUTION))


@pytest.mark.parametrize(
    "table, settings, message",
    [
        (
            lambda tokens: np.ones((4, 3)) / 3,
            {},
            r"next token, \(1, vocabulary\); received shape \(1, 4, 3\).*last_token",
        ),
        (lambda tokens: np.array([2.0, -1.0]), {}, "said to return probabilities.*wraps"),
        (lambda tokens: np.array([0.5, 0.9]), {}, "said to return probabilities"),
        (lambda tokens: np.array([np.nan, 0.9]), {"rtype": "logits"}, "not finite"),
        (lambda tokens: np.array([0.5, 0.5]), {"end_id": 2}, "`end_id`.*received 2 for 2 tokens"),
    ],
)
def test_bad_prediction_is_told(table, settings, message):
    with pytest.raises(ValueError, match=message):
        decoder_of(table, **settings).greedy(INPUTS)


def test_bad_lengths():
    with pytest.raises(ValueError, match="`maxlen` must be an int of at least 1; received 0"):
        Wrapped(None, 0, 0)
    with pytest.raises(ValueError, match=r"`minlen` must be in \[1, maxlen=3\]; received 4"):
        Wrapped(None, 0, 3, minlen=4)
    with pytest.raises(ValueError, match="`default_rtype`.*received 'prob'"):
        AutoRegressiveDecoder.wraps("prob")


def test_last_token():
    inputs = {"a": keras.Input((None,), dtype="int32", name="a")}
    x = keras.layers.Embedding(5, 3)(inputs["a"])
    model = keras.Model(inputs, {"mlm": x, "pooled": keras.layers.GlobalAveragePooling1D()(x)})
    decoder = Wrapped(None, 0, 3)
    last = decoder.last_token(model)
    assert decoder.last_token(model) is last
    ids = {"a": np.array([[1, 2, 3], [4, 0, 1]])}
    whole, outputs = model(ids), last(ids)
    np.testing.assert_allclose(outputs["mlm"], whole["mlm"][:, -1])
    np.testing.assert_allclose(outputs["pooled"], whole["pooled"])
    plain = keras.Model(inputs["a"], x)
    assert decoder.last_token(plain).predict(ids["a"], verbose=0).shape == (2, 3)

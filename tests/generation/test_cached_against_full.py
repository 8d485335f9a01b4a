"""Cached generation against decoding by the book: the whole row again for each token, in NumPy."""

import functools
import json
import math
import os
import subprocess
import sys
from collections import Counter

import keras
import numpy as np
import pytest
from scipy.stats import chi2

from simretro.generation import beam_search, generate
from simretro.models import build_transformer_model
from tests.reference import decoding
from tests.reference import numpy_bert as nb
from tests.reference.harness import build, load, position_warnings
from tests.reference.scripted import scripted_weights

pytestmark = pytest.mark.backends
CLS, SEP = 2, 3
SOURCES = [[CLS, 9, 8, 17, 11, 20, 6, SEP], [CLS, 21, SEP], [CLS, 5, 5, 12, 19, SEP]]
OPTIONS = {"application": "unilm", "with_mlm": "linear"}


# Seeds whose greedy outputs end at three different steps, without a near tie on the way.
SEEDS = {"bert": 14, "factorised": 19, "roberta": 43, "roformer": 48, "no_segments": 1}


@functools.cache
def random_model(family="bert", seed=None, vocab_size=24, alphabet_size=None):
    """(config, weights, model) that writes no padding, likes to end, and knows the first `alphabet_size` tokens."""
    config = nb.tiny_config(family, vocab_size=vocab_size)
    weights = nb.random_weights(config, SEEDS[family] if seed is None else seed)
    weights["mlm_head/bias"][alphabet_size or vocab_size :] = -30
    weights["mlm_head/bias"][config["pad_token_id"]] = -30
    weights["mlm_head/bias"][SEP] += 2
    return config, weights, build(config, weights, **OPTIONS)


@pytest.fixture(scope="module")
def bert():
    return random_model()


V, PLACES = 14, 24  # scripted models: ids 4..13 are letters


def scripted_model(by_position, otherwise, **overrides):
    """A model that writes by position: {position: {token: p}}, and `otherwise` {token: p} at all others."""
    config = nb.tiny_config(vocab_size=V, **{"max_position_embeddings": PLACES, "num_hidden_layers": 1, **overrides})
    table = np.zeros((config["max_position_embeddings"] - config["position_offset"], V))
    for position in range(len(table)):
        for token, probability in by_position.get(position, otherwise).items():
            table[position, token] = probability
    return build(config, scripted_weights(config, table), **OPTIONS)


def fair(tokens, others=0.0):
    """{token: p} with equal p for `tokens`."""
    return {token: (1 - others) / len(tokens) for token in tokens}


def assert_drawn_from(counts, probabilities):
    """Chi-square test of counts {outcome: n} against {outcome: p}; seeds are fixed, so it cannot flicker."""
    total = sum(counts.values())
    impossible = {outcome: n for outcome, n in counts.items() if probabilities.get(outcome, 0) <= 1e-7}
    assert not impossible, f"drawn, but filtered away: {impossible}"
    expected = np.array([p * total for p in probabilities.values()])
    observed = np.array([counts.get(outcome, 0) for outcome in probabilities])
    rare = expected < 5  # pooled: the approximation needs five a cell
    cells = [(observed[~rare], expected[~rare])]
    if expected[rare].sum() >= 5:
        cells.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    statistic = sum(((o - e) ** 2 / e).sum() for o, e in cells)
    freedom = sum(len(e) for _, e in cells) - 1
    assert freedom > 0 and statistic < chi2.ppf(1 - 1e-4, freedom), f"{statistic:.1f} at {freedom} degrees"


# Greedy
@pytest.mark.parametrize("family", SEEDS)
def test_greedy_equals_repeated_full_forward(family):
    config, weights, model = random_model(family)
    results = generate(model, SOURCES, max_new_tokens=12, end_id=SEP, top_k=1)
    lengths = set()
    for source, outputs in zip(SOURCES, results, strict=True):
        want, lead = decoding.greedy(config, weights, source, 12, SEP)
        assert lead > 1e-3, "no near tie: float32 can decide this"
        assert outputs == [want]
        lengths.add(len(want))
    assert len(lengths) == 3, "the sources must end at different steps for this to mean something"


def test_greedy_ends_at_the_end_id_given_and_keeps_the_last_source_token(bert):
    """The end may be any token; then [SEP] is written like any other."""
    config, weights, model = bert
    end = 17
    want, leads = zip(*[decoding.greedy(config, weights, source, 12, end) for source in SOURCES], strict=True)
    assert min(leads) > 1e-3
    assert any(SEP in output for output in want) and any(len(output) < 12 for output in want)
    results = generate(model, SOURCES, max_new_tokens=12, end_id=end, temperature=0)
    assert results == [[output] for output in want]


def test_temperature_zero_and_top_k_one_are_greedy(bert):
    _, _, model = bert
    options = {"max_new_tokens": 12, "end_id": SEP}
    greedy = generate(model, SOURCES, top_k=1, **options)
    assert generate(model, SOURCES, temperature=0, seed=5, **options) == greedy
    assert generate(model, SOURCES, top_k=1, temperature=0.7, n=2, **options) == [2 * output for output in greedy]


def test_minimum_and_forbidden_tokens_in_greedy(bert):
    config, weights, model = bert
    free = decoding.greedy(config, weights, SOURCES[1], 8, SEP)[0]
    options = {"min_new_tokens": 6, "forbidden_ids": [free[0], 20]}
    want = [decoding.greedy(config, weights, source, 8, SEP, **options)[0] for source in SOURCES]
    assert generate(model, SOURCES, 8, SEP, top_k=1, **options) == [[output] for output in want]


def test_sources_in_one_call_equal_single_calls(bert):
    """For greedy the comparison with NumPy says so already; the beams of one source must not mix with another's."""
    _, _, model = bert
    assert generate(model, SOURCES[1:2], 12, SEP, top_k=1) == generate(model, SOURCES, 12, SEP, top_k=1)[1:2]
    together = beam_search(model, SOURCES, 10, SEP, beam_size=5, n=5)
    for i in (0, 1):
        (alone,) = beam_search(model, SOURCES[i : i + 1], 10, SEP, beam_size=5, n=5)
        assert [tokens for tokens, _ in alone] == [tokens for tokens, _ in together[i]]
        np.testing.assert_allclose([s for _, s in alone], [s for _, s in together[i]], atol=1e-4)


def test_many_sources_in_one_call_keep_their_order(bert):
    """More sources than one batch may hold, of many lengths."""
    config, weights, model = bert
    rng = np.random.default_rng(0)
    sources = [[CLS, *rng.integers(4, 24, length).tolist(), SEP] for length in rng.integers(1, 14, 70)]
    results = generate(model, sources, 4, SEP, top_k=1)
    truths = [decoding.greedy(config, weights, source, 4, SEP) for source in sources]
    clear = [i for i, (_, lead) in enumerate(truths) if lead > 1e-3]
    assert len(clear) > 60
    assert [results[i] for i in clear] == [[truths[i][0]] for i in clear]


def test_a_reloaded_model_and_bfloat16_generate(bert, tmp_path):
    config, weights, model = bert
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert generate(loaded, SOURCES, 12, SEP, top_k=1) == generate(model, SOURCES, 12, SEP, top_k=1)
    half = build(config, weights, dtype="mixed_bfloat16", **OPTIONS)
    for outputs in generate(half, SOURCES, 8, SEP, n=3, top_k=5, seed=0):
        assert all(len(tokens) <= 8 and set(tokens) <= set(range(1, 24)) - {SEP} for tokens in outputs)


def test_new_weights_are_seen_without_a_new_model(bert):
    """A compiled loop must not have baked the weights in: training goes on between two calls."""
    config, weights, model = bert
    before = generate(model, SOURCES, 12, SEP, top_k=1)
    other = nb.random_weights(config, 11)
    want = [[decoding.greedy(config, other, source, 12, SEP)[0]] for source in SOURCES]
    try:
        load(model, other)
        assert generate(model, SOURCES, 12, SEP, top_k=1) == want != before
    finally:
        load(model, weights)


# Beam search
@pytest.mark.parametrize("family", ["bert", "roformer"])
def test_beam_scores_are_log_probabilities_of_the_full_forward(family):
    """Each score sums a step's logits after the other: the cached logits of every step equal the full UniLM forward."""
    config, weights, model = random_model(family)
    results = beam_search(model, SOURCES, max_new_tokens=10, end_id=SEP, beam_size=5, n=5)
    lengths = set()
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert len(hypotheses) == 5 == len({tuple(tokens) for tokens, _ in hypotheses})
        scores = [score for _, score in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for tokens, score in hypotheses:
            written = tokens if len(tokens) == 10 else [*tokens, SEP]
            assert SEP not in tokens and len(tokens) <= 10
            assert score == pytest.approx(decoding.log_probability(config, weights, source, written), abs=1e-4)
            lengths.add(len(tokens))
    assert len(lengths) > 2


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_wide_beams_find_what_exhaustive_search_finds(length_penalty):
    """Six tokens of 240 can be written, so 200 beams follow every hypothesis that matters."""
    alphabet, depth, best = [1, 2, 4, 5, 6], 4, 8
    config, weights, model = random_model(seed=11, vocab_size=240, alphabet_size=7)
    sources = [[CLS, 4, 6, 5, SEP], [CLS, 6, SEP]]
    results = beam_search(model, sources, depth, SEP, beam_size=200, length_penalty=length_penalty, n=best)
    for source, hypotheses in zip(sources, results, strict=True):
        ranked = []
        for tokens, (score, ended) in decoding.every_hypothesis(config, weights, source, depth, SEP, alphabet).items():
            ranked.append((score / max(len(tokens) + ended, 1) ** length_penalty, list(tokens), ended))
        ranked.sort(key=lambda hypothesis: -hypothesis[0])
        assert all(ended for *_, ended in ranked[:best]), "whether unended ones count must not matter here"
        assert [tokens for tokens, _ in hypotheses] == [tokens for _, tokens, _ in ranked[:best]]
        np.testing.assert_allclose([s for _, s in hypotheses], [s for s, *_ in ranked[:best]], atol=1e-4)


def test_one_beam_is_greedy(bert):
    _, _, model = bert
    greedy = generate(model, SOURCES, 12, SEP, top_k=1)
    beams = beam_search(model, SOURCES, 12, SEP, beam_size=1)
    assert [[tokens for tokens, _ in hypotheses] for hypotheses in beams] == greedy


def test_beam_search_keeps_finished_hypotheses():
    """Step 1: P(a) = .55, P(end) = .45; afterwards ten tokens at .1: the end is the best sequence of all."""
    a, letters = 4, range(4, 14)
    model = scripted_model({3: {a: 0.55, SEP: 0.45}}, fair(letters))
    ((best,),) = beam_search(model, [[CLS, 5, 6, SEP]], max_new_tokens=3, end_id=SEP, beam_size=2)
    assert best[0] == [] and best[1] == pytest.approx(math.log(0.45), abs=1e-3)


def test_beam_search_respects_the_minimum():
    model = scripted_model({}, {SEP: 0.9, **fair(range(4, 14), 0.9)})
    (hypotheses,) = beam_search(model, [[CLS, 5, SEP]], 8, SEP, beam_size=3, min_new_tokens=4, n=3)
    assert [len(tokens) for tokens, _ in hypotheses] == [3, 3, 3], "four tokens, the end included"
    assert all(SEP not in tokens for tokens, _ in hypotheses)


def test_length_penalty_prefers_longer_hypotheses():
    """Ended at once: log .5; after one more token: log .5 + log .8, halved."""
    model = scripted_model({2: {SEP: 0.5, 4: 0.5}, 3: {SEP: 0.8, 5: 0.2}}, {SEP: 1})
    ((short,),) = beam_search(model, [[CLS, 5, SEP]], 6, SEP, beam_size=4)
    ((long,),) = beam_search(model, [[CLS, 5, SEP]], 6, SEP, beam_size=4, length_penalty=1.0)
    assert short == ([], pytest.approx(math.log(0.5), abs=1e-3))
    assert long == ([4], pytest.approx((math.log(0.5) + math.log(0.8)) / 2, abs=1e-3))


# Sampling
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 5},
        {"top_p": 0.9},
        {"top_k": 8, "top_p": 0.85, "temperature": 1.3},
        {"temperature": 2.0, "forbidden_ids": [9, 20], "top_k": 6, "min_new_tokens": 2},
    ],
    ids=["all", "top_k", "top_p", "all_three", "excluded"],
)
def test_first_token_is_drawn_from_the_filtered_softmax(bert, options):
    config, weights, model = bert
    results = generate(model, SOURCES[:2], 1, SEP, n=1500, seed=17, **options)
    for source, outputs in zip(SOURCES[:2], results, strict=True):
        excluded = [*options.get("forbidden_ids", ()), *([SEP] if "min_new_tokens" in options else [])]
        filters = {name: options[name] for name in ("top_k", "top_p", "temperature") if name in options}
        logits = nb.next_logits(config, weights, source, [])
        p = decoding.sampling_distribution(logits, excluded=excluded, **filters)
        counts = Counter(tokens[0] if tokens else SEP for tokens in outputs)
        assert_drawn_from(counts, {token: p[token] for token in np.flatnonzero(p)})


def test_steps_are_drawn_independently(bert):
    """The joint distribution of the first two tokens: a uniform used twice would tie the second to the first."""
    config, weights, model = bert
    joint, source = {}, SOURCES[2]
    first = decoding.sampling_distribution(nb.next_logits(config, weights, source, []), top_k=3, excluded=[SEP])
    for a in np.flatnonzero(first):
        second = decoding.sampling_distribution(nb.next_logits(config, weights, source, [a]), top_k=3)
        for b in np.flatnonzero(second):
            joint[(int(a),) if b == SEP else (int(a), int(b))] = first[a] * second[b]
    (outputs,) = generate(model, [source], 2, SEP, n=3000, top_k=3, seed=23, min_new_tokens=2)
    assert_drawn_from(Counter(map(tuple, outputs)), joint)


@pytest.fixture(scope="module")
def known():
    """A model that always writes 4, 5, 6 or 7 with probability .5, .3, .15, .05."""
    return scripted_model({}, {4: 0.5, 5: 0.3, 6: 0.15, 7: 0.05})


@pytest.mark.parametrize(
    "options, support",
    [
        ({"top_k": 50}, {4, 5, 6, 7}),
        ({"top_p": 0.7}, {4, 5}),  # the token that crosses p stays
        ({"top_p": 0.4}, {4}),
        ({"top_k": 2, "top_p": 0.6}, {4}),  # p is taken of what top_k left: .625
        ({"temperature": 0.5, "top_p": 0.65}, {4}),  # and of the tempered softmax: .68
        ({"top_k": 2, "forbidden_ids": [4, 6]}, {5, 7}),  # the k best of those that are allowed
    ],
)
def test_what_the_filters_leave(known, options, support):
    (outputs,) = generate(known, [[CLS, 8, SEP]], 1, SEP, n=400, seed=1, **options)
    assert {tokens[0] for tokens in outputs} == support


def test_top_k_above_the_vocabulary_is_the_whole_vocabulary(known):
    options = {"max_new_tokens": 5, "end_id": SEP, "n": 6, "seed": 3}
    assert generate(known, [[CLS, 8, SEP]], top_k=50, **options) == generate(known, [[CLS, 8, SEP]], top_k=V, **options)


def test_the_end_is_kept_back_until_the_minimum():
    model = scripted_model({}, {SEP: 0.9, **fair(range(4, 14), 0.9)})
    (outputs,) = generate(model, [[CLS, 5, SEP]], 8, SEP, n=50, seed=0, min_new_tokens=4)
    assert all(3 <= len(tokens) <= 8 and SEP not in tokens for tokens in outputs), "four tokens, the end included"
    assert sum(len(tokens) == 3 for tokens in outputs) > 30


def test_seeds(bert):
    _, _, model = bert

    def draw(seed):
        return generate(model, SOURCES, 10, SEP, n=6, top_k=8, seed=seed)

    state = np.random.get_state()[1].copy()
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None)
    draw(7)
    np.testing.assert_array_equal(np.random.get_state()[1], state, err_msg="the global generator is the caller's")


def test_each_source_has_n_samples_of_its_own(bert):
    _, _, model = bert
    results = generate(model, [SOURCES[0], SOURCES[0], SOURCES[1]], 10, SEP, n=6, top_k=8, seed=5)
    assert [len(outputs) for outputs in results] == [6, 6, 6]
    assert all(type(token) is int for outputs in results for tokens in outputs for token in tokens)
    assert len({tuple(tokens) for tokens in results[0]}) > 3, "samples of one source share a prefill, not their draws"
    assert results[0] != results[1], "nor do two sources"


@pytest.mark.slow
@pytest.mark.parity  # where the other backend is installed
def test_the_same_seed_gives_the_same_tokens_on_another_backend():
    backends = {"tensorflow": "jax", "jax": "tensorflow"}
    other = backends.get(keras.backend.backend(), "tensorflow")
    pytest.importorskip(other)
    run = subprocess.run(
        [sys.executable, "-c", "import tests.generation.test_cached_against_full as t; t.print_samples()"],
        env={**os.environ, "KERAS_BACKEND": other, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == samples()


def samples():
    _, _, model = random_model()
    return generate(model, SOURCES, 10, SEP, n=4, top_k=8, top_p=0.95, seed=7)


def print_samples():
    sys.stdout.write(json.dumps(samples()) + "\n")


# Room for positions
@functools.cache
def endless():
    return scripted_model({}, fair(range(4, 14)), max_position_embeddings=16)


LONG, SHORT = [CLS, *[5] * 12, SEP], [CLS, 6, 6, SEP]  # 14 and 4 tokens, 16 places


@pytest.mark.parametrize("search", [False, True], ids=["sample", "beam"])
def test_output_is_capped_where_the_positions_end(search):
    model = endless()

    def lengths(sources, max_new_tokens=32):
        if search:
            results = beam_search(model, sources, max_new_tokens, SEP, beam_size=2)
            return [len(hypotheses[0][0]) for hypotheses in results]
        return [len(outputs[0]) for outputs in generate(model, sources, max_new_tokens, SEP, seed=0)]

    together, caught = position_warnings(lambda: lengths([LONG, SHORT]))
    assert len(caught) == 1, f"one warning a call: {caught}"
    assert "16" in caught[0]
    assert 1 <= together[0] <= 2 and 11 <= together[1] <= 12, "source + output <= 16, each source by its own length"
    assert position_warnings(lambda: lengths([SHORT]))[0] == together[1:], "a long neighbour takes no room away"


def test_what_fits_is_not_warned_of():
    outputs, caught = position_warnings(lambda: generate(endless(), [LONG, SHORT], 2, SEP, seed=0))
    assert [len(tokens) for (tokens,) in outputs] == [2, 2] and not caught


def test_the_offset_of_roberta_takes_places_away():
    """18 rows from row 2 on are 16 positions."""
    config = {"model_type": "roberta", "position_offset": 2, "max_position_embeddings": 18, "type_vocab_size": 1}
    model = scripted_model({}, fair(range(4, 14)), **config)
    (outputs,), caught = position_warnings(lambda: generate(model, [LONG], 32, SEP, seed=0, n=2))
    assert all(1 <= len(tokens) <= 2 for tokens in outputs) and len(caught) == 1


@pytest.mark.parametrize("length", [16, 20])
def test_a_source_that_leaves_no_room(length):
    """Nothing, or an error that names the limit: never a crash from a table lookup."""
    source = [CLS, *[5] * (length - 2), SEP]
    try:
        (outputs,), caught = position_warnings(lambda: generate(endless(), [source], 4, SEP, seed=0))
    except ValueError as error:
        assert "16" in str(error)
    else:
        assert caught and len(outputs) == 1


# Arguments
def test_no_source_gives_no_result(bert):
    assert generate(bert[2], [], 4, SEP) == [] == beam_search(bert[2], [], 4, SEP)


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_p": 1.5}, {"top_p": 0.0}, {"n": 0}, {"max_new_tokens": 0}]
)
def test_bad_values_are_named(bert, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}`"):
        generate(bert[2], SOURCES, **{"max_new_tokens": 4, "end_id": SEP, **options})


@pytest.mark.parametrize("options", [{"application": "unilm"}, {"application": "encoder", "with_mlm": "linear"}])
def test_a_model_that_cannot_write_is_refused(options):
    model = build_transformer_model(nb.tiny_config(), **options)
    with pytest.raises(ValueError):
        generate(model, SOURCES, 4, SEP)

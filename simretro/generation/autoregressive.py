"""Decoding with a `predict` of your own: bert4keras' AutoRegressiveDecoder in NumPy, no cache, one source at a time."""

from collections.abc import Callable, Sequence
from functools import wraps as keep_name

import numpy as np

from simretro.arguments import check_int

_PREDICTION = "_simretro_prediction"  # marks a decorated `predict`


class AutoRegressiveDecoder:
    """Base class of decoders: a subclass says what comes next, this class how to choose.

    ```python
    class Synonyms(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps(default_rtype="probas")
        def predict(self, inputs, output_ids, states):
            token_ids, segment_ids = inputs
            token_ids = np.concatenate([token_ids, output_ids], 1)
            segment_ids = np.concatenate([segment_ids, np.ones_like(output_ids)], 1)
            inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
            return self.last_token(encoder).predict(inputs, verbose=0)["mlm_probs"]

    decoder = Synonyms(start_id=None, end_id=tokenizer.sep_token_id, maxlen=32)
    decoder.random_sample([token_ids, segment_ids], n=10, topk=5, rng=0)
    ```

    Args:
        start_id: int, the token every output begins with, or None. It is part of the outputs and counts for neither
            `maxlen` nor `minlen`.
        end_id: int, the token that ends an output.
        maxlen: int >= 1, most tokens of an output, its end token included.
        minlen: int >= 1, fewest tokens of an output, its end token included: before that the end token is forbidden.
    Raises: ValueError for a bad length.
    Reference: the class of the same name in bert4keras 0.11.5. Unlike there, finished hypotheses are kept in the beam
        search, samples come in the order of their rows, `topk` beyond the vocabulary counts as all, `minlen` never
        puts an end token into an output, and a `rng` makes samples reproducible.
    """

    def __init__(self, start_id: int | None, end_id: int, maxlen: int, minlen: int = 1):
        maxlen, minlen = check_int("maxlen", maxlen, 1), check_int("minlen", minlen, 1)
        if minlen > maxlen:
            raise ValueError(f"`minlen` must be in [1, maxlen={maxlen}]; received {minlen!r}.")
        self.start_id, self.end_id, self.maxlen, self.minlen = start_id, end_id, maxlen, minlen
        self.first_output_ids = np.zeros((1, 0), "int64") if start_id is None else np.array([[start_id]])
        self._last_token_models = {}

    @staticmethod
    def wraps(default_rtype: str | Callable = "probas", use_states: bool = False) -> Callable:
        """Decorator of `predict(self, inputs, output_ids, states)`.

        Args:
            default_rtype: what `predict` returns, "probas" or "logits", (rows, vocabulary) for the next token.
            use_states: bool; True: `predict` returns (that, states) and gets the states of its rows back in the next
                step. States are an array or nested lists, tuples and dicts of arrays whose first axis is the rows.
        Returns: the decorator; the decorated method also takes `temperature` and `rtype` ("probas" or "logits", the
            latter giving log-probabilities) and returns (array, states).
        """
        if callable(default_rtype):  # used without parentheses
            return AutoRegressiveDecoder.wraps()(default_rtype)
        if default_rtype not in ("probas", "logits"):
            raise ValueError(f'`default_rtype` must be "probas" or "logits"; received {default_rtype!r}.')

        def decorate(predict):
            @keep_name(predict)
            def prediction(self, inputs, output_ids, states=None, temperature=1, rtype=default_rtype):
                scores = predict(self, inputs, output_ids, states)
                scores, states = scores if use_states else (scores, None)
                probas = _probabilities(scores, len(output_ids), default_rtype, temperature)
                return (probas if rtype == "probas" else np.log(np.maximum(probas, 1e-30))), states

            setattr(prediction, _PREDICTION, True)
            return prediction

        return decorate

    @staticmethod
    def set_rtype(default: str = "probas") -> Callable:
        """Decorator of the old `predict(self, inputs, output_ids, step)`, as of bert4keras before 0.8.

        Args:
            default: as `default_rtype` of `wraps`.
        """

        def decorate(predict):
            @keep_name(predict)
            def with_step(self, inputs, output_ids, states):
                return predict(self, inputs, output_ids, output_ids.shape[1] - self.first_output_ids.shape[1])

            return AutoRegressiveDecoder.wraps(default)(with_step)

        return decorate

    def predict(self, inputs: list[np.ndarray], output_ids: np.ndarray, states=None):
        """What comes next; to be defined in the subclass, with `wraps` or `set_rtype`.

        Args:
            inputs: list of arrays (rows, ...), the inputs given to the search, repeated for each row.
            output_ids: int (rows, tokens so far).
            states: see `wraps`.
        Returns: (rows, vocabulary).
        """
        raise NotImplementedError("define `predict(self, inputs, output_ids, states)` in a subclass.")

    def last_token(self, model):
        """A model that returns only the last position of each output with a length axis.

        Args:
            model: functional `keras.Model`.
        Returns: `keras.Model`, the same one for each call.
        """
        import keras

        if id(model) not in self._last_token_models:
            outputs = keras.tree.map_structure(lambda x: x[:, -1] if len(x.shape) > 2 else x, model.output)
            # With its model, whose id would else be given to another one some day.
            self._last_token_models[id(model)] = keras.Model(model.input, outputs), model
        return self._last_token_models[id(model)][0]

    def greedy(self, inputs: Sequence, states=None, min_ends: int = 1) -> np.ndarray:
        """The most probable token at each step.

        Args:
            inputs: list of sequences, the inputs of one source.
            states: see `wraps`.
            min_ends: int, end tokens that an output must have to be finished.
        Returns: int (tokens,), the end token included; without one if `maxlen` came first.
        """
        return self._one_by_one(inputs, 1, states, min_ends, lambda probas: probas.argmax(1), temperature=1)[0]

    def random_sample(
        self,
        inputs: Sequence,
        n: int,
        topk: int | None = None,
        topp: float | None = None,
        states=None,
        temperature: float = 1,
        min_ends: int = 1,
        rng: np.random.Generator | int | None = None,
    ) -> list[np.ndarray]:
        """Random outputs.

        Args:
            inputs: list of sequences, the inputs of one source.
            n: int, number of outputs.
            topk: int or None: draw among the k most probable tokens.
            topp: float in (0, 1] or None: among these, draw from the most probable ones up to and including the one
                whose cumulated probability reaches `topp`.
            states, min_ends: as of `greedy`.
            temperature: float > 0; below 1 the probable gets more probable.
            rng: NumPy generator, or a seed of one; None: another one each time.
        Returns: list of n int (tokens,) arrays.
        Raises: ValueError for an argument out of range.
        """
        n = check_int("n", n, 1)
        _check_choice(topk, topp, temperature)
        rng = np.random.default_rng(rng)
        return self._one_by_one(inputs, n, states, min_ends, lambda probas: _draw(probas, topk, topp, rng), temperature)

    def beam_search(
        self,
        inputs: Sequence,
        topk: int,
        states=None,
        temperature: float = 1,
        min_ends: int = 1,
        length_penalty: float = 0.0,
        with_scores: bool = False,
    ) -> np.ndarray | list[tuple[np.ndarray, float]]:
        """The most probable output, as far as a beam finds it.

        Finished hypotheses leave the beam and are kept; one that has not ended at `maxlen` counts like them. The
        search ends when no hypothesis in the beam can get better than the `topk` best ones.

        Args:
            inputs: list of sequences, the inputs of one source.
            topk: int, hypotheses in the beam.
            states, min_ends: as of `greedy`.
            temperature: as of `random_sample`.
            length_penalty: float >= 0; hypotheses are compared by log-probability / tokens**length_penalty. 0 compares
                probabilities, which favours short outputs.
            with_scores: bool; True: the `topk` best ones with their scores.
        Returns: int (tokens,), or list of (int (tokens,), score), the best first.
        Raises: ValueError for an argument out of range.
        """
        _check_choice(topk, None, temperature)
        if length_penalty < 0:
            raise ValueError(f"`length_penalty` must not be negative; received {length_penalty!r}.")
        inputs, output_ids, totals = _as_rows(inputs), self.first_output_ids, np.zeros(1)
        finished = []
        for step in range(1, self.maxlen + 1):
            log_probas, states = self._predict(inputs, output_ids, states, temperature, step, min_ends, "logits")
            # Half of twice as many cannot end, so the beam stays full; only the best ones are taken as finished.
            rows, tokens, totals = _best_continuations(totals[:, None] + log_probas, 2 * topk)
            output_ids = np.concatenate([output_ids[rows], tokens[:, None]], axis=1)
            done = self._is_finished(output_ids, min_ends) | (step == self.maxlen)
            new = np.flatnonzero(done[:topk])
            finished += [(output_ids[i], float(totals[i] / step**length_penalty)) for i in new]
            finished = sorted(finished, key=lambda hypothesis: -hypothesis[1])[:topk]
            going = np.flatnonzero(~done)[:topk]
            totals, output_ids = totals[going], output_ids[going]
            # A log-probability can only fall; divided by the longest length is the best that it can become.
            best_possible = totals.max(initial=-np.inf) / self.maxlen**length_penalty
            if not len(going) or (len(finished) == topk and best_possible <= finished[-1][1]):
                break
            inputs, states = _take(inputs, rows[going]), _take(states, rows[going])
        return finished if with_scores else finished[0][0]

    def _one_by_one(self, inputs, n, states, min_ends, choose, temperature):
        """Outputs of n rows whose next tokens `choose` takes from the probabilities."""
        inputs, output_ids = _as_rows(inputs), self.first_output_ids
        going, results = np.arange(n), [None] * n
        for step in range(1, self.maxlen + 1):
            probas, states = self._predict(inputs, output_ids, states, temperature, step, min_ends, "probas")
            if step == 1:  # all rows are still equal: predicted once
                rows = np.zeros(n, "int64")
                probas, inputs, states = probas[rows], _take(inputs, rows), _take(states, rows)
                output_ids = output_ids[rows]
            output_ids = np.concatenate([output_ids, choose(probas)[:, None]], axis=1)
            done = self._is_finished(output_ids, min_ends) | (step == self.maxlen)
            for row in np.flatnonzero(done):
                results[going[row]] = output_ids[row]
            left = np.flatnonzero(~done)
            if not len(left):
                break
            inputs, states, output_ids, going = _take(inputs, left), _take(states, left), output_ids[left], going[left]
        return results

    def _predict(self, inputs, output_ids, states, temperature, step, min_ends, rtype):
        if not getattr(type(self).predict, _PREDICTION, False):
            raise TypeError(
                f"`predict` of {type(self).__name__} must be decorated with `AutoRegressiveDecoder.wraps(...)`, which "
                "says whether it returns probabilities or logits."
            )
        scores, states = self.predict(inputs, output_ids, states, temperature, rtype)
        size = scores.shape[1]
        if not 0 <= self.end_id < size or size < 2:
            raise ValueError(
                f"`end_id` must be one of the tokens that `predict` scores, and not the only one; received "
                f"{self.end_id} for {size} tokens."
            )
        if step < self.minlen:
            scores = self._without_end(scores, self._num_ends(output_ids) + 1 >= min_ends, rtype)
        return scores, states

    def _without_end(self, scores, rows, rtype):
        """Forbids the end token in these rows, which it would finish."""
        scores = scores.copy()
        if rtype == "logits":
            scores[rows, self.end_id] = -np.inf
            return scores
        scores[rows, self.end_id] = 0.0
        # Where nothing else is possible, all the others are.
        scores[scores.sum(1) <= 0] = np.arange(scores.shape[1]) != self.end_id
        return scores / scores.sum(1, keepdims=True)

    def _num_ends(self, output_ids):
        return np.sum(output_ids[:, self.first_output_ids.shape[1] :] == self.end_id, axis=1)

    def _is_finished(self, output_ids, min_ends):
        return self._num_ends(output_ids) >= min_ends


def _check_choice(topk, topp, temperature):
    if topk is not None:
        check_int("topk", topk, 1)
    if topp is not None and not 0 < topp <= 1:
        raise ValueError(f"`topp` must be in (0, 1]; received {topp!r}.")
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive; received {temperature!r}. For the most probable: `greedy`.")


def _probabilities(scores, num_rows, rtype, temperature):
    """float64 (rows, vocabulary) of what `predict` returned."""
    scores = np.asarray(scores, "float64")
    if scores.ndim != 2 or len(scores) != num_rows:
        raise ValueError(
            f"`predict` must return the scores of the next token, ({num_rows}, vocabulary); received shape "
            f"{scores.shape}. Take the last position: `[:, -1]`, or `last_token(model)`."
        )
    if rtype == "logits":
        scores = scores / temperature
        probas = np.exp(scores - scores.max(1, keepdims=True))
    else:
        # Half precision sums up to 1 only so closely.
        if np.any(scores < 0) or np.any(np.abs(scores.sum(1) - 1) > 0.02):
            raise ValueError(
                "`predict` was said to return probabilities, but they are not positive numbers that sum up to 1. "
                "Decorate it with `wraps('logits')` if they are logits."
            )
        probas = scores if temperature == 1 else (scores / scores.max(1, keepdims=True)) ** (1 / temperature)
    if not np.all(np.isfinite(probas)):
        raise ValueError("`predict` returned numbers that are not finite.")
    return probas / probas.sum(1, keepdims=True)


def _draw(probas, topk, topp, rng):
    """One token for each row, by inverting the cumulated probabilities of those that may be drawn."""
    order = np.argsort(-probas, axis=1, kind="stable")
    if topk is not None:
        order = order[:, :topk]
    cumulated = np.cumsum(np.take_along_axis(probas, order, axis=1), axis=1)
    totals = cumulated[:, -1]
    if topp is not None:
        # Up to and including the first whose cumulated probability, renormalised, reaches the bound.
        last = np.argmax(cumulated >= topp * totals[:, None] * (1 - 1e-12), axis=1)
        totals = np.take_along_axis(cumulated, last[:, None], axis=1)[:, 0]
    uniforms = rng.random(len(probas)) * totals
    places = np.argmax(cumulated > uniforms[:, None], axis=1)
    return np.take_along_axis(order, places[:, None], axis=1)[:, 0]


def _best_continuations(totals, topk):
    """(rows, tokens, totals) of the best possible ones of (rows, vocabulary), the best first; at most `topk`."""
    flat = totals.reshape(-1)
    best = np.argsort(-flat, kind="stable")[: min(topk, np.sum(flat > -np.inf))]
    return best // totals.shape[1], best % totals.shape[1], flat[best]


def _as_rows(inputs):
    return [np.array([sequence]) for sequence in inputs]


def _take(structure, rows):
    """Rows of each array of a nested structure."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {name: _take(value, rows) for name, value in structure.items()}
    if isinstance(structure, list | tuple):
        taken = [_take(value, rows) for value in structure]
        return type(structure)(*taken) if hasattr(structure, "_fields") else type(structure)(taken)
    return np.asarray(structure)[rows]

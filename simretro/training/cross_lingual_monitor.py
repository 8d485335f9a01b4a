"""Do the spaces of several languages come together while a model trains?"""

from collections.abc import Callable, Mapping, Sequence

from simretro.arguments import check_int
from simretro.evaluation import cross_lingual_statistics
from simretro.evaluation.geometry import check_pairs
from simretro.training.periodic import PeriodicEvaluation
from simretro.training.probe_texts import checked_texts, encoded


class CrossLingualMonitor(PeriodicEvaluation):
    """Encodes the same texts of some languages at the end of each epoch, and every N steps, and logs how these lie.

    ```python
    texts = {"en": english, "de": german, "fr": french}
    monitor = CrossLingualMonitor(model.encode, texts, pairs=[("en", "de"), ("en", "fr")])
    model.fit(data, epochs=5, callbacks=[monitor, checkpoint, keras.callbacks.TensorBoard("runs/logs")])
    ```

    The logs of the epoch get the means of `cross_lingual_statistics`, as `cross_lingual_offset`: over languages `std`,
    `uniformity`, `effective_rank` and `mean_cosine`; over pairs of languages `offset`, `hubness_skewness`, `hub_share`
    and `laplacian_distance`; and of translations `alignment`, `isomorphism` and `accuracy`. What each language and each
    pair has is in `statistics`. For the place in the list of callbacks, for steps, resuming and averaged weights see
    `PeriodicEvaluation`.

    A loss that falls while `accuracy` does not rise comes from something else than meaning: see `ccp_gaps`, too.

    Args:
        encode: called with the list of texts of a language, returns numbers (N, d), without dropout and of any length.
        texts_by_language: for each language at least two strings, no two of them equal; some hundreds are better, on
            the same subjects in all languages, and none that the model is trained on.
        pairs: pairs of languages in which text i of the one translates text i of the other.
        every_steps: int >= 1; measures every so many steps, too. None: at the end of epochs only.
        name: str, what the names in the logs begin with.
        neighbors: int >= 1, see `cross_lingual_statistics`.
    Attributes:
        history: list of {"step": updates done, **numbers}, see `PeriodicEvaluation`.
        statistics: list of what `cross_lingual_statistics` gave, one for each entry of `history`.
    Raises: ValueError if an argument is out of range, or if vectors are not finite.
    """

    def __init__(
        self,
        encode: Callable,
        texts_by_language: Mapping[str, Sequence[str]],
        pairs: Sequence[tuple[str, str]] | None = None,
        every_steps: int | None = None,
        name: str = "cross_lingual",
        neighbors: int = 10,
    ):
        self.texts_by_language = {
            language: checked_texts(own, 2, f"texts_by_language[{language!r}]")
            for language, own in texts_by_language.items()
        }
        if not self.texts_by_language:
            raise ValueError("`texts_by_language` must have at least one language; received none.")
        self.pairs = check_pairs(pairs or (), {name: len(own) for name, own in self.texts_by_language.items()})
        self.neighbors = check_int("neighbors", neighbors, 1)
        super().__init__(self._measure, every_steps, name)
        self.encode = encode
        self.statistics: list[dict] = []

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.statistics = []

    def _measure(self):
        vectors = {
            language: encoded(self.encode, texts, f" of {language!r}")
            for language, texts in self.texts_by_language.items()
        }
        self.statistics.append(cross_lingual_statistics(vectors, self.pairs, self.neighbors))
        return self.statistics[-1]["means"]

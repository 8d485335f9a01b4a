"""Brings the sentence vectors of several languages into one space, without parallel text: shift, scale, rotate."""

import copy
import os
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from simretro.arguments import check_int, warn
from simretro.arrays import unit_rows
from simretro.calibration.gate import learn_rotation
from simretro.calibration.statistics import check_vectors, divisor, half_whitening, moments, squared_distance_ratio
from simretro.calibration.store import load_folder, save_folder

STAGES = ("raw", "shift", "scale", "rotate")


class CrossLingualCalibrator(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """Calibration of sentence vectors per language: x' = ((x - mean) / spread) @ rotation, then l2-normalised.

    `fit` takes sentence vectors of each language, from monolingual text; not the test set, and no translations needed,
    though text on the same subjects in all languages helps the rotation a great deal. Each language is rotated onto
    the pivot; from language i to j the maps are composed through it, `W_ip @ W_jp.T`.

    A rotation learned without pairs can be wrong, and then it is worse than none. So it leaves the identity only as far
    as its pairs are a reason to (`identity_weight`); and it is learned on two halves of the data too, and where these
    disagree the language is left with shift and scale, and a warning says so.

    Args:
        shift: bool; subtracts the mean of the language.
        scale: "principal" = along each principal axis of the languages' mean covariance by the square root of the
            standard deviation, half a whitening, the same for all languages; "std", "variance" = each dimension by that
            of the language; or None. The paper's word is "variance", its unit is the standard deviation's; on real
            vectors dividing by the variance did harm. On those of `ccp_quality` "principal" was best: a trained
            encoder has what tells texts on one subject apart in directions that vary little.
        rotate: "procrustes" = from the identity, turn by turn: mutual nearest neighbours by CSLS, then the orthogonal
            map of these pairs; for languages that one encoder brings near each other. "adversarial" = MUSE's
            discriminator first (Keras), for hours and with doubtful success. None = no rotation.
        pivot: str or None, the language whose space is shared; None = the one with the most vectors.
        csls_k: int, neighbours in CSLS.
        mutual: bool; False takes the nearest target of every source vector, as MUSE's program does by default.
        n_refine: int, turns of refinement; 0 only with a dictionary.
        identity_weight: float >= 0, for `rotate="procrustes"` without a dictionary: how much speaks for leaving vectors
            where they are, in pairs along each axis that lie where their partners lie (see `procrustes`). Of the pairs
            found some are wrong, and one encoder's languages are near each other. On help pages in eight languages
            (TF-IDF and SVD, 100 and 256 dimensions, 600 and 2,500 texts) 2 to 8 were best.
        min_agreement: float or None, least agreement of the halves' maps, learned with a weight of 0: mean cosine of a
            vector under the one and the other. None = 0.15, or 0.3 for maps that no weight holds.
        min_relative_agreement: float or None, how much of the way from chance, the agreement after turning a language
            at random, to the agreement of halves with the pairs of the final map. On those pages rotating brought 3 to
            16 points from 0.3 on; below, where it was negative nearly always, -1 to 2. None = 0.25, or 0.5 for maps
            that no weight holds.
        max_vectors: int, vectors of a language that the rotation is learned from, drawn at random; time grows with the
            square.
        n_starts: int, adversarial maps of which the one with the best agreement is kept.
        adversarial: dict or None, arguments of `adversarial_map`: epochs, steps_per_epoch, hidden_size, ...
        random_state: int; the same vectors and the same number give the same result.

    Fitted attributes:
        languages_: list of str, in the order of `fit`. pivot_: str. n_features_in_: int. fingerprint_: str or None.
        means_, variances_: dict language -> float64 (d,). counts_: dict language -> int.
        axes_: float64 (d, d) by which vectors are multiplied with `scale="principal"`, else None.
        rotations_: dict language -> float64 (d, d), onto the pivot; only those that are applied.
        reports_: dict language -> dict, for each but the pivot, empty without `rotate`: "applied" (bool), "method"
            ("procrustes", "adversarial"; with a dictionary "identity", "procrustes" or "refined"), "num_pairs"
            (that the map rests on); without a dictionary "agreement" and "relative_agreement" (float); with one
            "held_out_ranks" (for each method the geometric mean of the rank at which a pair is found that took no part
            in learning; empty with one pair).
    References: CCP, https://arxiv.org/abs/2206.03281; MUSE, https://arxiv.org/abs/1710.04087; whitening of sentence
        vectors: Su et al., 2021, https://arxiv.org/abs/2103.15316
    """

    def __init__(
        self, shift: bool = True, scale: str | None = "principal", rotate: str | None = "procrustes",
        pivot: str | None = None, *, csls_k: int = 10, mutual: bool = True, n_refine: int = 5,
        identity_weight: float = 4.0, min_agreement: float | None = None, min_relative_agreement: float | None = None,
        max_vectors: int = 10_000, n_starts: int = 3, adversarial: dict | None = None, random_state: int = 0,
    ):  # fmt: skip
        self.shift = shift
        self.scale = scale
        self.rotate = rotate
        self.pivot = pivot
        self.csls_k = csls_k
        self.mutual = mutual
        self.n_refine = n_refine
        self.identity_weight = identity_weight
        self.min_agreement = min_agreement
        self.min_relative_agreement = min_relative_agreement
        self.max_vectors = max_vectors
        self.n_starts = n_starts
        self.adversarial = adversarial
        self.random_state = random_state

    @property
    def stages(self) -> tuple[str, ...]:
        """What `upto` of `transform` can name with these settings, in the order in which it is done."""
        used = (True, self.shift, self.scale is not None, self.rotate is not None)
        return tuple(stage for stage, on in zip(STAGES, used, strict=True) if on)

    def fit(
        self, X: Mapping[str, np.ndarray] | np.ndarray, y: Sequence[str] | None = None, *,
        dictionary: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None, fingerprint: str | None = None,
    ) -> "CrossLingualCalibrator":  # fmt: skip
        """Takes the statistics of each language and learns its rotation onto the pivot.

        Args:
            X: dict language -> numbers (N, d), N >= 2; or numbers (N, d) of all languages.
            y: with an array, the language of each row.
            dictionary: dict language -> (numbers (P, d), numbers (P, d)), vectors of P sentences in that language and
                of their translations into the pivot. A few dozen are a help where the languages are far apart.
            fingerprint: str or None, of the model that made the vectors; kept, for `transform` and `load` to compare.
        Returns: self.
        Raises: ValueError for settings out of range, vectors that are not finite, of different dimensions, fewer than
            two of a language or all the same, an unknown pivot, or a dictionary that does not fit. The calibrator is
            then as it was.
        """
        fitted = copy.copy(self)
        fitted._fit(X, y, dictionary or {}, fingerprint)
        vars(self).update(vars(fitted))
        return self

    def _fit(self, X, y, dictionary, fingerprint):
        """Sets the attributes as soon as it knows them, each to a new object."""
        self._check_settings(dictionary)
        X = self._by_language(X, y)
        dimensions = {language: check_vectors(vectors, f"X[{language!r}]").shape[1] for language, vectors in X.items()}
        if len(set(dimensions.values())) != 1:
            raise ValueError(f"`X` must have vectors of one dimension in all languages; received {dimensions}.")
        self.languages_ = list(X)
        self.n_features_in_ = next(iter(dimensions.values()))
        self.counts_ = {language: len(vectors) for language, vectors in X.items()}
        self.pivot_ = self.pivot if self.pivot is not None else max(self.counts_, key=self.counts_.get)
        self._check_language(self.pivot_, "pivot")
        self.fingerprint_ = fingerprint
        self.means_, self.variances_ = {}, {}
        for language, vectors in X.items():
            self.means_[language], self.variances_[language] = moments(vectors, f"X[{language!r}]")
        self.axes_ = None
        if self.scale == "principal":
            self.axes_ = half_whitening(list(X.values()), list(self.means_.values()))
        self.rotations_, self.reports_ = {}, {}
        if self.rotate is not None:
            self._fit_rotations(X, self._checked_dictionary(dictionary))

    def transform(
        self, X: Mapping[str, np.ndarray] | np.ndarray, language: str | Sequence[str] | None = None,
        to: str | None = None, *, upto: str | None = None, fingerprint: str | None = None,
    ) -> dict[str, np.ndarray] | np.ndarray:  # fmt: skip
        """Calibrates sentence vectors.

        Args:
            X: dict language -> numbers (N, d), or numbers (N, d).
            language: with an array, the language of all rows, or of each.
            to: str or None, the language into whose space they are rotated; None = the pivot. It matters only to what
                the result is compared with: cosines among vectors taken to the same space are the same in every one.
            upto: "raw", "shift", "scale", "rotate" or None; the operation after which to stop, to tell apart what each
                contributes. None = all.
            fingerprint: str or None, of the model that made the vectors; compared with that of `fit`, which must have
                been given one. None = not compared.
        Returns: float32, l2-normalised, in the form of `X`; a vector that is zero by then stays zero.
        Raises: ValueError for a language that was not fitted, another dimension, numbers that are not finite, another
            model's fingerprint, or any if `fit` was given none.
        """
        check_is_fitted(self)
        if upto is not None and upto not in STAGES:
            raise ValueError(f"`upto` must be one of {STAGES} or None; received {upto!r}.")
        self._check_fingerprint(fingerprint, "`fingerprint`")
        to = self.pivot_ if to is None else to
        self._check_language(to, "to")
        steps = len(STAGES) if upto is None else STAGES.index(upto) + 1
        if isinstance(X, Mapping):
            if language is not None:
                raise ValueError("`language` must be None if `X` is a dict; its keys are the languages.")
            return {name: self._transform(vectors, name, to, steps) for name, vectors in X.items()}
        if language is None:
            raise ValueError("`language` must be given if `X` is an array; or give a dict of language and vectors.")
        if isinstance(language, str):
            return self._transform(X, language, to, steps)
        X = check_vectors(X, "X")
        result = np.empty(X.shape, "float32")
        for name, rows in self._rows_by_language(language, len(X)).items():
            result[rows] = self._transform(X[rows], name, to, steps)
        return result

    def fit_transform(self, X, y=None, **fit_params):
        """`fit`, then `transform` of the same vectors into the pivot's space."""
        self.fit(X, y, **fit_params)
        return self.transform(X, None if isinstance(X, Mapping) else y)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes calibrator.json and calibrator.npz to a folder, in place of what was there, whole or not at all.

        Raises: ValueError if the folder holds a model, an index, an encoded corpus or the checkpoints of a run.
        """
        check_is_fitted(self)
        save_folder(folder, self)

    @classmethod
    def load(cls, folder: str | os.PathLike, fingerprint: str | None = None) -> "CrossLingualCalibrator":
        """Reads what `save` wrote.

        Args:
            folder: path of the folder.
            fingerprint: str or None, of the model whose vectors will be calibrated; compared with that of `fit`, which
                must have been given one. None = not compared.
        Raises: FileNotFoundError or ValueError that names the file, when one is missing or damaged; ValueError that
            names both fingerprints, when the calibrator is another model's, or says that `fit` was given none.
        """
        calibrator = load_folder(folder, cls)
        calibrator._check_fingerprint(fingerprint, f"The calibrator in {os.fspath(folder)}")
        return calibrator

    def _fit_rotations(self, X, dictionary):
        samples = {}
        for language, vectors in X.items():
            # A generator for each language: what one gets does not depend on which others there are.
            rng = np.random.default_rng([self.random_state, zlib.crc32(language.encode("utf-8"))])
            vectors = np.asarray(vectors)
            if len(vectors) > self.max_vectors:
                vectors = vectors[np.sort(rng.choice(len(vectors), self.max_vectors, replace=False))]
            samples[language] = self._scaled(vectors, language, 3), rng
        target = samples[self.pivot_][0]
        for language in self.languages_:
            if language == self.pivot_:
                continue
            seeds = dictionary.get(language)
            if seeds is not None:
                seeds = self._scaled(seeds[0], language, 3), self._scaled(seeds[1], self.pivot_, 3)
            source, rng = samples[language]
            rotation, self.reports_[language] = learn_rotation(
                source, target, self.rotate, seeds, rng, **self._least_agreements(), n_starts=self.n_starts,
                adversarial=self.adversarial or {}, identity_weight=self.identity_weight, csls_k=self.csls_k,
                mutual=self.mutual, n_refine=self.n_refine,
            )  # fmt: skip
            if rotation is not None:
                self.rotations_[language] = rotation
        self._warn_of_fallbacks()

    def _least_agreements(self):
        """What was given, or what suits maps that are held near the identity, or those that are not."""
        held = self.rotate == "procrustes" and self.identity_weight > 0
        least = {"min_agreement": 0.15 if held else 0.3, "min_relative_agreement": 0.25 if held else 0.5}
        return {name: value if getattr(self, name) is None else getattr(self, name) for name, value in least.items()}

    def _warn_of_fallbacks(self):
        refused = {language: report for language, report in self.reports_.items() if not report["applied"]}
        if not refused:
            return
        reasons = []
        for language, report in refused.items():
            if "agreement" in report:
                agreements = f"{report['agreement']:.2f}, {report['relative_agreement']:.2f} of what is possible"
                reason = f"halves agree by {agreements}, {report['num_pairs']} pairs"
            else:
                reason = "pairs held out are not found sooner with a rotation than without, or there is only one pair"
            reasons.append(f"{language} ({reason}, {self.counts_[language]} vectors)")
        warn(
            f"Not rotated onto {self.pivot_}, only shift and scale are applied: {'; '.join(reasons)}. Required are "
            f"{' and '.join(map(str, self._least_agreements().values()))}. More vectors, text on the same subjects or "
            "a `dictionary` may help."
        )

    def _transform(self, vectors, language, to, steps):
        self._check_language(language, "language")
        vectors = check_vectors(vectors, f"X[{language!r}]", self.n_features_in_)
        ratio = squared_distance_ratio(vectors, self.means_[language], self.variances_[language])
        if ratio is not None:
            warn(
                f"The vectors given for {language} lie {ratio:.3g} times as far (squared) from its mean as those it "
                "was fitted with: are they another model's, another layer's, or normalised where those were not?"
            )
        rotation = self._rotation(language, to) if steps > 3 else None
        result = np.empty(vectors.shape, "float32")
        for start in range(0, len(vectors), 8192):
            rows = slice(start, start + 8192)
            scaled = self._scaled(vectors[rows], language, steps)
            result[rows] = scaled if rotation is None else unit_rows(scaled @ rotation)
        return result

    def _scaled(self, vectors, language, steps):
        """After shift and scale, or fewer steps; float32, l2-normalised, which a rotation leaves as it is."""
        vectors = np.asarray(vectors, "float64")
        if self.shift and steps > 1:
            vectors = vectors - self.means_[language]
        if self.scale == "principal" and steps > 2:
            vectors = vectors @ self.axes_
        elif self.scale is not None and steps > 2:
            vectors = vectors / divisor(self.variances_[language], self.scale)
        return unit_rows(vectors)

    def _rotation(self, language, to):
        """`W_ip @ W_jp.T`, or None for the identity."""
        if language == to:
            return None
        own, other = self.rotations_.get(language), self.rotations_.get(to)
        if other is None:
            return own
        return other.T if own is None else own @ other.T

    def _by_language(self, X, y):
        if isinstance(X, Mapping):
            if y is not None:
                raise ValueError("`y` must be None if `X` is a dict; its keys are the languages.")
            if not X or not all(isinstance(language, str) for language in X):
                raise ValueError(f"`X` must have at least one language, and names as keys; received {list(X)}.")
            return {language: np.asarray(vectors) for language, vectors in X.items()}
        if y is None:
            raise ValueError("`y` must name the language of each row if `X` is an array; or give a dict.")
        X = check_vectors(X, "X")
        return {language: X[rows] for language, rows in self._rows_by_language(y, len(X)).items()}

    @staticmethod
    def _rows_by_language(names, count):
        names = list(names) if not isinstance(names, str) else []
        if len(names) != count or not all(isinstance(name, str) for name in names):
            raise ValueError(f"The languages must be {count} names, one for each row of `X`; received {len(names)}.")
        rows = {}
        for row, name in enumerate(names):
            rows.setdefault(str(name), []).append(row)
        return rows

    def _checked_dictionary(self, dictionary):
        checked = {}
        for language, pair in dictionary.items():
            self._check_language(language, "dictionary")
            if language == self.pivot_:
                raise ValueError(f"`dictionary` must hold translations into the pivot {language!r}, not of it.")
            names = [f"dictionary[{language!r}][{side}]" for side in (0, 1)]
            pair = tuple(check_vectors(side, name, self.n_features_in_) for side, name in zip(pair, names, strict=True))
            if len(pair[0]) != len(pair[1]) or not len(pair[0]):
                raise ValueError(
                    f"`{names[0]}` and the other side must have as many rows, at least one; received "
                    f"{len(pair[0])} and {len(pair[1])}."
                )
            checked[language] = pair
        return checked

    def _check_settings(self, dictionary):
        if self.scale not in ("principal", "std", "variance", None):
            raise ValueError(f'`scale` must be "principal", "std", "variance" or None; received {self.scale!r}.')
        if self.rotate not in ("procrustes", "adversarial", None):
            raise ValueError(f'`rotate` must be "procrustes", "adversarial" or None; received {self.rotate!r}.')
        for name, least in (("csls_k", 1), ("n_refine", 0), ("max_vectors", 4), ("n_starts", 1), ("random_state", 0)):
            check_int(name, getattr(self, name), least)
        if not 0 <= self.identity_weight < float("inf"):
            raise ValueError(f"`identity_weight` must be at least 0; received {self.identity_weight!r}.")
        if dictionary and self.rotate != "procrustes":
            raise ValueError(f'`dictionary` needs `rotate="procrustes"`; received {self.rotate!r}.')
        if self.rotate is not None and not self.n_refine and not dictionary:
            raise ValueError("`n_refine` must be at least 1 without a `dictionary`: there is no other source of pairs.")

    def _check_language(self, language, name):
        if language not in self.languages_:
            raise ValueError(
                f"`{name}` must be one of the languages that were fitted, {self.languages_}; received {language!r}. "
                "Fit again with vectors of that language."
            )

    def _check_fingerprint(self, fingerprint, what):
        if fingerprint is None or fingerprint == self.fingerprint_:
            return
        if self.fingerprint_ is None:
            raise ValueError(
                f"{what} cannot be compared: the calibrator does not know which model's vectors it was fitted with, "
                f"yours are of {fingerprint}. Fit it with `fingerprint=`."
            )
        raise ValueError(
            f"{what} does not fit: the calibrator was fitted with vectors of the model {self.fingerprint_}, yours "
            f"are of {fingerprint}. Fit again with vectors of this model."
        )

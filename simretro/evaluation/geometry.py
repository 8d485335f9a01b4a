"""The shape of sentence vectors: how evenly they are spread, and how the spaces of several languages lie to each other.

All of it is of unit vectors, since retrieval compares directions: lengths do not count.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from simretro.arguments import check_int
from simretro.arrays import unit_rows
from simretro.evaluation.bitext import bitext_accuracy

# Singular values of unit vectors in float32 below this times sqrt(N) are rounding; so are differences below this.
_ROUNDING = 1e-6
# A hub is among the nearest neighbours of so many times as many vectors as the mean.
_HUB = 5
_SCORES_PER_BLOCK = 1 << 22  # float64, 32 MB
# The share of the sum of the eigenvalues that is compared.
_SPECTRUM_SHARE = 0.9


def embedding_statistics(vectors) -> dict[str, float]:
    """How evenly vectors are spread over the directions; their lengths do not count.

    With the unit vectors u_i, their mean over all pairs i < j and their centred matrix:

    - `std`: standard deviation of a coordinate, mean over the coordinates, times sqrt(d); 1 = the same in all
      directions, 0 = all vectors are equal;
    - `uniformity`: log mean exp(-2 |u_i - u_j|^2), 0 = all equal, about -4 for many vectors in all directions;
    - `effective_rank`: exp of the entropy of the singular values over their sum, the number of directions in which
      the vectors differ, from 1 to min(N - 1, d); 0 = all are equal up to the rounding of float32;
    - `mean_cosine`: mean of u_i · u_j, 1 = all equal.

    Args:
        vectors: numbers (N, d), N >= 2; a vector of zeros stays one.
    Returns: {name: float}.
    Raises: ValueError for another shape or numbers that are not finite.
    Reference: Wang and Isola, 2020, https://arxiv.org/abs/2005.10242 (uniformity); Roy and Vetterli, 2007, The
        effective rank, EUSIPCO.
    """
    units = _units(vectors)
    centred = units - units.mean(axis=0)
    left, right = np.triu_indices(len(units), k=1)
    # From the centred vectors: of nearly equal ones the products of the units would leave only rounding.
    squares = (centred**2).sum(axis=1)
    distances = np.maximum(squares[left] + squares[right] - 2 * (centred @ centred.T)[left, right], 0)
    return {
        "std": float(centred.std(axis=0).mean() * centred.shape[1] ** 0.5),
        "uniformity": float(np.log(np.exp(-2 * distances).mean())),
        "effective_rank": _effective_rank(centred),
        "mean_cosine": float((units @ units.T)[left, right].mean()),
    }


def cross_lingual_statistics(
    vectors_by_language: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]] | None = None, neighbors: int = 10
) -> dict[str, dict]:  # fmt: skip
    """How the languages' spaces lie to each other; with translations also how well these lie together.

    Of each language: what `embedding_statistics` has. Of any two languages:

    - `offset`: distance of their means by the spread around them (root of the mean squared distance, mean of the two):
      what the shift of a calibration removes; far above 0, the language is the first thing that a vector tells;
    - `hubness_skewness`, `hub_share`: see `hubness`, of each among the other's vectors, mean of the two directions;
      where they are high, CSLS retrieves better than the cosine;
    - `laplacian_distance`: how differently the two are built, without translations: the squared difference of the
      eigenvalues of the Laplacians of their nearest neighbour graphs, summed over the largest ones (`graph_spectrum`,
      `spectrum_distance`); 0 = graphs of the same build. It grows with the number of vectors, and means something for
      texts on the same subjects alone.

    Of languages whose rows translate each other (`pairs`):

    - `alignment`: mean |u_i - v_i|^2 of a text and its translation; 0 = in the same place, 2 = unrelated;
    - `isomorphism`: correlation (Pearson) of the cosines within the one language with those of the same texts within
      the other. It does not change with a shift of the unit vectors or with a rotation, which a calibration could
      undo: 1 = one space is the other, shifted and rotated; 0 if all vectors of a language are equal;
    - `accuracy`: share of the texts that find their translation by cosine, mean of both directions.

    Args:
        vectors_by_language: for each language numbers (N, d), N >= 2, as many as there are texts; all of one d. A few
            hundred; time and memory grow with the square, for `laplacian_distance` time with the cube.
        pairs: pairs of languages in which row i of the one translates row i of the other.
        neighbors: int >= 1, neighbours of a vector for hubness and graphs; fewer where there are not so many.
    Returns: dict with "languages": {language: {name: float}}, "pairs": {"en-de": {name: float}} for all pairs of
        languages, those of `pairs` in the order that they have there; "means": {name: float}, each number's mean over
        the languages or pairs that have it.
    Raises: ValueError for no language, vectors of another shape or dimension or that are not finite, `pairs` with an
        unknown language or sides of different lengths.
    Reference: Wang and Isola, 2020, https://arxiv.org/abs/2005.10242 (alignment); Radovanovic et al., 2010, JMLR 11
        (hubness); Søgaard et al., 2018, https://arxiv.org/abs/1805.03620 (Laplacians).
    """
    check_int("neighbors", neighbors, 1)
    units = _units_of_languages(vectors_by_language)
    translated = check_pairs(pairs or (), {language: len(own) for language, own in units.items()})
    languages = {language: embedding_statistics(vectors) for language, vectors in units.items()}
    others = [pair for pair in combinations(units, 2) if not {pair, pair[::-1]} & {*translated}]
    found = {}
    for a, b in [*translated, *others]:
        found[f"{a}-{b}"] = _pair_statistics(units[a], units[b], neighbors)
        if (a, b) in translated:
            found[f"{a}-{b}"] |= _translation_statistics(units[a], units[b])
    means = {}
    for group in (languages, found):
        for name in dict.fromkeys(name for numbers in group.values() for name in numbers):
            means[name] = float(np.mean([numbers[name] for numbers in group.values() if name in numbers]))
    return {"means": means, "languages": languages, "pairs": found}


def hubness(vectors, other_vectors=None, neighbors: int = 10) -> dict[str, float]:
    """Are a few vectors near to everything?

    For each vector, how often is it among the `neighbors` nearest, by cosine, of the others?

    - `skewness`: of these counts, mean cubed distance from their mean by the cubed standard deviation; 0 = as many
      have few as have many, or all the same; the larger, the fewer vectors take most places;
    - `hub_share`: share of the vectors whose count is at least 5 times the mean.

    Args:
        vectors: numbers (N, d), N >= 2, among which neighbours are looked for.
        other_vectors: numbers (M, d), whose neighbours they are; None: the vectors themselves, each without itself.
        neighbors: int >= 1; fewer where there are not so many.
    Returns: {name: float}.
    Raises: ValueError for another shape or numbers that are not finite.
    Reference: Radovanovic et al., 2010, Hubs in space, JMLR 11; Flexer and Schnitzer, 2015 (what a hub is).
    """
    check_int("neighbors", neighbors, 1)
    units = _units(vectors)
    queries = units if other_vectors is None else _units(other_vectors, "other_vectors", least=1)
    if queries.shape[1] != units.shape[1]:
        raise ValueError(
            f"`vectors` and `other_vectors` must have one dimension; received {units.shape[1]} and {queries.shape[1]}."
        )
    found = _nearest(queries, units, neighbors, without_own=other_vectors is None)
    counts = np.bincount(found.ravel(), minlength=len(units))
    centred = counts - counts.mean()
    deviation = counts.std()
    return {
        "skewness": float((centred**3).mean() / deviation**3) if deviation else 0.0,
        "hub_share": float((counts >= _HUB * counts.mean()).mean()),
    }


def graph_spectrum(vectors, neighbors: int = 10) -> np.ndarray:
    """Eigenvalues of the Laplacian of the graph that joins vectors one of which is among the other's nearest.

    Args:
        vectors: numbers (N, d), N >= 2.
        neighbors: int >= 1, by cosine; fewer where there are not so many.
    Returns: float64 (N,), from the largest to the smallest, which is 0.
    Raises: ValueError for another shape or numbers that are not finite.
    """
    check_int("neighbors", neighbors, 1)
    units = _units(vectors)
    joined = np.zeros((len(units), len(units)))
    np.put_along_axis(joined, _nearest(units, units, neighbors, without_own=True), 1.0, axis=1)
    joined = np.maximum(joined, joined.T)
    return np.linalg.eigvalsh(np.diag(joined.sum(axis=1)) - joined)[::-1]


def spectrum_distance(spectrum, other_spectrum) -> float:
    """Sum of the squared differences of the largest eigenvalues of two graphs.

    As many are compared as it takes in the one graph that takes fewer to make up 90 % of the sum of its eigenvalues.

    Args:
        spectrum, other_spectrum: from `graph_spectrum`, of as many vectors.
    Raises: ValueError for different numbers of eigenvalues.
    Reference: Søgaard et al., 2018, https://arxiv.org/abs/1805.03620, section 3.
    """
    spectra = [np.asarray(values, "float64") for values in (spectrum, other_spectrum)]
    if spectra[0].shape != spectra[1].shape:
        raise ValueError(
            "`spectrum` and `other_spectrum` must be of as many vectors; received "
            f"{len(spectra[0])} and {len(spectra[1])} eigenvalues."
        )
    compared = min(
        1 + int(np.argmax(np.cumsum(values) >= _SPECTRUM_SHARE * values.sum() * (1 - 1e-9))) for values in spectra
    )
    return float(np.square(spectra[0][:compared] - spectra[1][:compared]).sum())


def check_pairs(pairs: Sequence[tuple[str, str]], counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of languages in which row i of the one translates row i of the other.

    Args:
        pairs: see `cross_lingual_statistics`.
        counts: for each language the number of its rows.
    Raises: ValueError for an unknown language or sides of different lengths.
    """
    pairs = [tuple(pair) for pair in pairs]
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or not {*pair} <= counts.keys():
            raise ValueError(f"`pairs` must be of two of the languages {[*counts]}; received {pair}.")
        if counts[pair[0]] != counts[pair[1]]:
            raise ValueError(
                f"`pairs` has {pair}, so row i of the one must translate row i of the other; received "
                f"{counts[pair[0]]} and {counts[pair[1]]} rows."
            )
    return pairs


def _pair_statistics(left, right, neighbors):
    hubs = [hubness(right, left, neighbors), hubness(left, right, neighbors)]
    count = min(len(left), len(right))  # graphs of as many vectors
    spectra = [graph_spectrum(side[:count], neighbors) for side in (left, right)]
    return {
        "offset": _offset(left, right),
        "hubness_skewness": (hubs[0]["skewness"] + hubs[1]["skewness"]) / 2,
        "hub_share": (hubs[0]["hub_share"] + hubs[1]["hub_share"]) / 2,
        "laplacian_distance": spectrum_distance(*spectra),
    }


def _translation_statistics(left, right):
    return {
        "alignment": float(np.square(left - right).sum(axis=1).mean()),
        "isomorphism": _isomorphism(left, right),
        "accuracy": bitext_accuracy(left, right).mean,
    }


def _offset(left, right):
    """Infinite for two points; 0 for one."""
    means = [side.mean(axis=0) for side in (left, right)]
    spreads = [
        np.sqrt(np.square(side - mean).sum(axis=1).mean()) for side, mean in zip((left, right), means, strict=True)
    ]
    distance, spread = float(np.linalg.norm(means[0] - means[1])), float(np.mean(spreads))
    if spread > _ROUNDING:
        return distance / spread
    return float("inf") if distance > _ROUNDING else 0.0


def _isomorphism(left, right):
    rows = np.triu_indices(len(left), k=1)
    cosines = []
    for side in (left, right):
        # The squared distance of unit vectors is 2 - 2 cos, and that of the centred ones the same, with more digits.
        centred = side - side.mean(axis=0)
        squares = np.square(centred).sum(axis=1)
        found = (centred @ centred.T)[rows] - (squares[rows[0]] + squares[rows[1]]) / 2
        cosines.append(found - found.mean())
    norms = [np.linalg.norm(side) for side in cosines]
    if min(norms) <= _ROUNDING**2 * len(rows[0]) ** 0.5:
        return 0.0
    return float(np.clip(cosines[0] @ cosines[1] / (norms[0] * norms[1]), -1, 1))


def _nearest(queries, vectors, neighbors, without_own):
    """Places of the nearest `neighbors` of each query, in no order; int64 (M, k)."""
    k = min(neighbors, len(vectors) - without_own)
    step = max(1, _SCORES_PER_BLOCK // len(vectors))
    found = []
    for start in range(0, len(queries), step):
        cosines = queries[start : start + step] @ vectors.T
        if without_own:
            own = np.arange(len(cosines))
            cosines[own, start + own] = -np.inf
        found.append(np.argpartition(-cosines, k - 1, axis=1)[:, :k])
    return np.concatenate(found)


def _units_of_languages(vectors_by_language):
    if not vectors_by_language:
        raise ValueError("`vectors_by_language` must have at least one language; received none.")
    units = {
        language: _units(vectors, f"vectors_by_language[{language!r}]")
        for language, vectors in vectors_by_language.items()
    }
    dimensions = {language: vectors.shape[1] for language, vectors in units.items()}
    if len({*dimensions.values()}) > 1:
        raise ValueError(f"`vectors_by_language` must be of one dimension in all languages; received {dimensions}.")
    return units


def _units(vectors, name="vectors", least=2):
    """float64 (N, d), l2-normalised; a vector of zeros stays one."""
    vectors = np.asarray(vectors, "float64")
    if vectors.ndim != 2 or len(vectors) < least or not vectors.shape[1]:
        raise ValueError(f"`{name}` must be (N, d) with at least {least} rows; received shape {vectors.shape}.")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ValueError(f"`{name}` must be finite; row {row} is not. The model may have diverged.")
    return unit_rows(vectors, "float64")


def _effective_rank(centred):
    values = np.linalg.svd(centred, compute_uv=False)
    values = values[values > _ROUNDING * len(centred) ** 0.5]
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))

import copy
import json
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from simretro.arrays import unit_rows
from simretro.calibration import CrossLingualCalibrator, gate
from simretro.calibration.gate import learn_rotation
from simretro.calibration.rotation import Rotation
from tests.calibration.clouds import meanings, random_rotation, spoken, top1


@pytest.fixture(scope="module")
def world():
    """Three languages that say the same in random order, and 200 further sentences in all of them, in one order."""
    rng = np.random.default_rng(0)
    said, held_out = meanings(800, 12, rng), meanings(200, 12, rng)
    fitted, test, truth = {}, {}, {}
    for language in ("en", "de", "ru"):
        angle = 0 if language == "en" else 0.3
        everything = np.concatenate([said, held_out])
        vectors, *truth[language] = spoken(everything, rng, angle)
        fitted[language], test[language] = vectors[: len(said)][rng.permutation(len(said))], vectors[len(said) :]
    return fitted, test, truth


@pytest.fixture(scope="module")
def calibrator(world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return CrossLingualCalibrator(scale="std", pivot="en").fit(world[0])


def test_recovers_shift_scale_and_rotation(world, calibrator):
    fitted, _, truth = world
    for language, (_, spread, mean) in truth.items():
        assert calibrator.means_[language].dtype == "float64"
        np.testing.assert_allclose(calibrator.means_[language], fitted[language].astype("float64").mean(0), atol=1e-9)
        np.testing.assert_allclose(
            calibrator.variances_[language], fitted[language].astype("float64").var(0), rtol=1e-9
        )
        assert spread.shape == mean.shape
    for language in ("de", "ru"):
        report = calibrator.reports_[language]
        assert report["applied"] and report["agreement"] > 0.9 and report["relative_agreement"] > 0.9
        assert report["num_pairs"] > 550
        matrix = calibrator.rotations_[language]
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(12), atol=1e-9)


def test_numbers_after_each_operation(world, calibrator):
    _, test, _ = world
    assert calibrator.stages == ("raw", "shift", "scale", "rotate")
    for language in ("de", "ru"):
        stages = [calibrator.transform(test, upto=stage) for stage in calibrator.stages]
        found = [top1(vectors[language], vectors["en"]) for vectors in stages]
        assert found[0] < 0.5 and found[1] < found[3] and found[3] > 0.95
        assert found[3] == top1(calibrator.transform(test[language], language), calibrator.transform(test["en"], "en"))


def test_each_operation_is_what_it_says(world, calibrator):
    vectors = world[1]["de"]
    mean, std = calibrator.means_["de"], np.sqrt(calibrator.variances_["de"])
    by_hand = [vectors, vectors - mean, (vectors - mean) / std, (vectors - mean) / std @ calibrator.rotations_["de"]]
    for stage, expected in zip(calibrator.stages, by_hand, strict=True):
        result = calibrator.transform(vectors, "de", upto=stage)
        assert result.dtype == "float32"
        np.testing.assert_allclose(result, unit_rows(expected), atol=1e-6)
    variance = CrossLingualCalibrator(scale="variance", rotate=None).fit({"de": world[0]["de"]})
    np.testing.assert_allclose(variance.transform(vectors, "de"), unit_rows((vectors - mean) / std**2), atol=1e-6)
    plain = CrossLingualCalibrator(scale=None, rotate=None).fit({"de": world[0]["de"]})
    np.testing.assert_allclose(plain.transform(vectors, "de"), unit_rows(vectors - mean), atol=1e-6)
    assert plain.stages == ("raw", "shift") and plain.reports_ == {}


def test_principal_scale_halves_the_spread_of_all_languages_alike(tmp_path):
    """Two languages with the same axes: standard deviations of 4, 2, 1 and 0 along them become 2, 1.4, 1 and 0."""
    rng = np.random.default_rng(0)
    basis = random_rotation(4, rng)
    points = rng.standard_normal((500, 4))
    points = (points - points.mean(0)) / points.std(0)
    cloud = points * [4, 2, 1, 0] @ basis.T
    X = {"en": cloud + 3, "de": cloud[::-1] - 5}
    calibrator = CrossLingualCalibrator(rotate=None, pivot="en").fit(X)
    correlations = np.corrcoef(points[:, :3].T)
    deviations = np.array([4, 2, 1])
    variances, axes = np.linalg.eigh(correlations * np.outer(deviations, deviations))
    half = axes * variances**-0.25 @ axes.T
    expected = unit_rows(points[:, :3] * deviations @ half @ basis[:, :3].T)
    for language, sign in (("en", 1), ("de", -1)):
        found = calibrator.transform(X[language], language)
        np.testing.assert_allclose(found, expected[::sign], atol=1e-6)
    calibrator.save(tmp_path / "c")
    again = CrossLingualCalibrator.load(tmp_path / "c")
    np.testing.assert_array_equal(again.axes_, calibrator.axes_)
    np.testing.assert_equal(again.transform(X), calibrator.transform(X))


def test_composition_through_the_pivot(world, calibrator):
    _, test, _ = world
    direct = calibrator.transform(test["de"], "de", to="ru"), calibrator.transform(test["ru"], "ru", to="ru")
    pivot = calibrator.transform(test["de"], "de"), calibrator.transform(test["ru"], "ru")
    np.testing.assert_allclose(direct[0] @ direct[1].T, pivot[0] @ pivot[1].T, atol=1e-5)
    assert top1(*direct) > 0.95
    rotations = calibrator.rotations_
    np.testing.assert_allclose(
        direct[0], calibrator.transform(test["de"], "de", upto="scale") @ rotations["de"] @ rotations["ru"].T, atol=1e-5
    )
    np.testing.assert_array_equal(direct[1], calibrator.transform(test["ru"], "ru", upto="scale"))
    np.testing.assert_array_equal(
        calibrator.transform(test["en"], "en"), calibrator.transform(test["en"], "en", upto="scale")
    )


def test_forms_of_the_argument(world, calibrator):
    fitted, test, _ = world
    expected = {language: calibrator.transform(vectors, language) for language, vectors in test.items()}
    for language, vectors in calibrator.transform(test).items():
        np.testing.assert_array_equal(vectors, expected[language])
    rows, names = np.stack([test["de"][0], test["ru"][0], test["de"][1]]), ["de", "ru", "de"]
    result = calibrator.transform(rows, names)
    np.testing.assert_allclose(result, [expected["de"][0], expected["ru"][0], expected["de"][1]], atol=1e-6)
    assert calibrator.transform(np.zeros((0, 12)), "de").shape == (0, 12)
    # An array with the language of each row is the same as a dict.
    stacked = np.concatenate(list(fitted.values()))
    languages = [language for language, vectors in fitted.items() for _ in vectors]
    shift = CrossLingualCalibrator(rotate=None)
    np.testing.assert_allclose(
        shift.fit_transform(stacked, languages),
        np.concatenate(list(clone(shift).fit_transform(fitted).values())),
        atol=1e-6,
    )
    assert shift.pivot_ == "en"  # as many vectors as the others, and the first


def test_scikit_learn_conventions(world):
    settings = {"scale": None, "rotate": None, "pivot": "de", "csls_k": 7, "min_agreement": 0.5, "random_state": 3}
    calibrator = CrossLingualCalibrator(**settings)
    assert settings.items() <= calibrator.get_params().items()
    twin = clone(calibrator.fit(world[0]))
    assert twin.get_params() == calibrator.get_params() and not hasattr(twin, "means_")
    twin.set_params(pivot="ru").fit(world[0])
    assert (twin.pivot_, calibrator.pivot_, calibrator.n_features_in_) == ("ru", "de", 12)
    pipeline = make_pipeline(clone(calibrator))
    assert set(pipeline.fit(world[0]).transform(world[1])) == {"en", "de", "ru"}
    name = "CrossLingualCalibrator"
    estimator_checks.check_parameters_default_constructible(name, CrossLingualCalibrator())
    estimator_checks.check_get_params_invariance(name, CrossLingualCalibrator())
    estimator_checks.check_set_params(name, CrossLingualCalibrator())
    estimator_checks.check_no_attributes_set_in_init(name, CrossLingualCalibrator())
    with pytest.raises(ValueError, match="not fitted"):
        CrossLingualCalibrator().transform(world[1])


def test_other_languages_and_order_change_nothing(world, calibrator):
    # But for the axes of `scale="principal"`, which are all languages'.
    fitted = {language: world[0][language] for language in ("de", "en")}
    alone = CrossLingualCalibrator(scale="std", pivot="en").fit(fitted)
    np.testing.assert_array_equal(alone.rotations_["de"], calibrator.rotations_["de"])
    assert alone.reports_["de"] == calibrator.reports_["de"]


def test_only_a_sample_is_searched(world, monkeypatch):
    sizes = []

    def learn(source, target, *rest, **settings):
        sizes.append((len(source), len(target)))
        return None, {"applied": True}

    monkeypatch.setattr("simretro.calibration.calibrator.learn_rotation", learn)
    CrossLingualCalibrator(max_vectors=100).fit(world[0])
    CrossLingualCalibrator(max_vectors=75_000).fit(world[0])  # more than there are: clamped
    assert sizes == [(100, 100)] * 2 + [(800, 800)] * 2


def test_clouds_with_different_means_are_centred_by_default():
    # Two clouds of fifty points, the same up to their means: without centring all of one side is nearest to one point.
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 6))
    X = {"en": points + 20, "zh": points[::-1] - 20}
    calibrator = CrossLingualCalibrator().fit(X)
    both = calibrator.transform(X)
    assert top1(both["zh"][::-1], both["en"]) == 1
    raw = calibrator.transform(X, upto="raw")
    assert top1(raw["zh"][::-1], raw["en"]) < 0.3


@pytest.mark.parametrize("count, dimension", [(50, 20), (30, 40), (200, 30)])
def test_failure_is_shown_and_falls_back(count, dimension):
    rng = np.random.default_rng(0)
    X = {"en": rng.standard_normal((count, dimension)) + 1, "ja": rng.standard_normal((count, dimension)) - 1}
    with pytest.warns(UserWarning, match=rf"Not rotated onto en.*ja \(halves agree by .*{count} vectors\)") as caught:
        calibrator = CrossLingualCalibrator(pivot="en").fit(X)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert not calibrator.reports_["ja"]["applied"] and calibrator.rotations_ == {}
    np.testing.assert_array_equal(
        calibrator.transform(X["ja"], "ja"), calibrator.transform(X["ja"], "ja", upto="scale")
    )
    np.testing.assert_array_equal(calibrator.transform(X["ja"], "ja", to="en"), calibrator.transform(X["ja"], "ja"))


@pytest.mark.parametrize("seed", range(3))
def test_few_and_doubtful_pairs_do_less_harm_with_the_weight_of_the_identity(seed):
    """Languages turned a little, of which each says some of the same: a map of 32 dimensions from 300 sentences."""
    rng = np.random.default_rng(seed)
    said, said_too, test = (meanings(count, 32, rng) for count in (200, 200, 400))
    rotation = random_rotation(32, rng, 0.3)

    def heard(meanings):
        return meanings @ rotation + 1.6 * rng.standard_normal(meanings.shape)

    X = {"en": np.concatenate([said, said_too[:100]]), "de": heard(np.concatenate([said, said_too[100:]]))}
    german = heard(test)
    found = {}
    for weight in (0, 4):
        calibrator = CrossLingualCalibrator(
            scale=None, pivot="en", identity_weight=weight, min_agreement=-9, min_relative_agreement=-9
        ).fit(X)
        english = calibrator.transform(test, "en")
        found[weight] = top1(calibrator.transform(german, "de"), english)
    shifted = top1(calibrator.transform(german, "de", upto="shift"), english)
    assert max(found[0], shifted) + 0.01 < found[4]


def test_each_kind_of_map_has_the_limits_that_suit_it(world):
    agreements = [(0.15, 0.25), (0.3, 0.5), (0.3, 0.5), (0.2, 0.5), (0.15, 0.1)]
    options = [{}, {"identity_weight": 0}, {"rotate": "adversarial"}]
    options += [{"identity_weight": 0, "min_agreement": 0.2}, {"min_relative_agreement": 0.1}]
    for settings, expected in zip(options, agreements, strict=True):
        assert tuple(CrossLingualCalibrator(**settings)._least_agreements().values()) == expected
    with pytest.raises(ValueError, match=r"`identity_weight` must be at least 0; received -1"):
        CrossLingualCalibrator(identity_weight=-1).fit(world[0])


def test_thirty_sentences_are_too_few_to_trust():
    """The same thirty points in more dimensions, turned: pairs may be right, but they do not determine the map."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 64))
    X = {"en": points, "zh": points @ random_rotation(64, rng, 0.2)}
    with pytest.warns(UserWarning, match="Not rotated"):
        CrossLingualCalibrator(pivot="en").fit(X)


def test_three_points_and_one_language():
    X = {"en": np.eye(3), "de": np.eye(3)}
    with pytest.warns(UserWarning, match=r"de \(halves agree by 0.00"):
        CrossLingualCalibrator().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CrossLingualCalibrator().fit({"en": np.eye(3)}).transform(np.eye(3), "en").shape == (3, 3)


@pytest.fixture(scope="module")
def far():
    """A language turned too far for the identity, and 300 sentences of which all translations are known."""
    rng = np.random.default_rng(0)
    said, said_too, known = np.split(meanings(1500, 16, rng), [600, 1200])
    rotation = random_rotation(16, rng)
    X = {"en": said, "ru": said_too @ rotation}
    return X, (known @ rotation, known + 0.1 * rng.standard_normal(known.shape))


def test_a_seed_dictionary_rescues_a_distant_language(far):
    X, pairs = far
    seeds, test = [side[:60] for side in pairs], [side[60:] for side in pairs]
    with pytest.warns(UserWarning, match="Not rotated"):
        without = CrossLingualCalibrator(scale=None, pivot="en").fit(X)
    calibrator = CrossLingualCalibrator(scale=None, pivot="en").fit(X, dictionary={"ru": seeds})
    found = [top1(c.transform(test[0], "ru"), c.transform(test[1], "en")) for c in (without, calibrator)]
    assert found[0] < 0.1 and found[1] > 0.9
    report = calibrator.reports_["ru"]
    assert report["applied"] and report["method"] in ("procrustes", "refined")
    ranks = report["held_out_ranks"]
    assert ranks[report["method"]] == min(ranks.values()) < ranks["identity"]
    plain = CrossLingualCalibrator(scale=None, pivot="en", n_refine=0).fit(X, dictionary={"ru": seeds})
    assert plain.reports_["ru"]["method"] == "procrustes" and plain.reports_["ru"]["num_pairs"] == 60


def test_a_wrong_or_tiny_dictionary_is_refused(far):
    X, pairs = far
    wrong = {"ru": (pairs[0][:40], pairs[1][40:80])}
    with pytest.warns(UserWarning, match="not found sooner"):
        assert not CrossLingualCalibrator(pivot="en", n_refine=0).fit(X, dictionary=wrong).rotations_
    single = {"ru": (pairs[0][:1], pairs[1][:1])}
    with pytest.warns(UserWarning, match="only one pair"):
        calibrator = CrossLingualCalibrator(pivot="en").fit(X, dictionary=single)
    assert calibrator.reports_["ru"]["held_out_ranks"] == {}


def test_chance_is_no_reason_to_rotate():
    """Pairs that have nothing to do with each other: half of their maps find held-out pairs a little sooner."""
    applied = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        source, target, *seeds = (unit_rows(rng.standard_normal((count, 6))) for count in (100, 100, 24, 24))
        found, report = learn_rotation(
            source, target, "procrustes", tuple(seeds), rng, min_agreement=0, min_relative_agreement=0, n_starts=1,
            adversarial={}, csls_k=10, mutual=True, n_refine=0,
        )  # fmt: skip
        assert report["applied"] == (found is not None)
        applied += report["applied"]
    assert applied <= 4


def test_constant_dimensions_and_fewer_points_than_dimensions():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((5, 8))
    vectors[:, 3] = 1e6 + 0.1
    for scale in ("std", "variance"):
        calibrator = CrossLingualCalibrator(scale=scale, rotate=None).fit({"en": vectors})
        result = calibrator.transform(vectors, "en")
        assert np.isfinite(result).all() and np.abs(result[:, 3]).max() < 1e-6
    # A vector that leaves the constant is moved by as much as it does, not by rounding errors made large.
    moved = vectors[:1] + np.eye(8)[3]
    assert np.isfinite(calibrator.transform(moved, "en")).all()
    mean = calibrator.transform(vectors.mean(0, keepdims=True), "en", upto="shift")
    assert np.abs(mean).max() <= 1


def test_another_models_vectors_are_told(world, calibrator):
    test = world[1]["de"]
    with pytest.warns(UserWarning, match="another model's") as caught:
        calibrator.transform(test / np.linalg.norm(test, axis=1, keepdims=True) * 100, "de")
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match=r"dimension 12.*received dimension 7"):
        calibrator.transform(np.ones((2, 7)), "de")
    fitted = CrossLingualCalibrator(rotate=None).fit(world[0], fingerprint="abc")
    fitted.transform(test, "de", fingerprint="abc")
    with pytest.raises(ValueError, match="abc.*xyz"):
        fitted.transform(test, "de", fingerprint="xyz")


def test_save_and_load(world, calibrator, tmp_path):
    calibrator = copy.copy(calibrator)
    calibrator.fingerprint_ = "abc"
    calibrator.save(tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["calibrator.json", "calibrator.npz"]
    loaded = CrossLingualCalibrator.load(tmp_path / "c", fingerprint="abc")
    assert loaded.get_params() == calibrator.get_params() and loaded.reports_ == calibrator.reports_
    for to in ("en", "ru"):
        for language, vectors in world[1].items():
            np.testing.assert_array_equal(
                loaded.transform(vectors, language, to), calibrator.transform(vectors, language, to)
            )
    loaded.save(tmp_path / "c")  # over itself
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    with pytest.raises(ValueError, match="abc.*xyz"):
        CrossLingualCalibrator.load(tmp_path / "c", fingerprint="xyz")
    bare = CrossLingualCalibrator(np.True_, None, None, random_state=np.int64(4)).fit(world[0])
    bare.save(tmp_path / "bare")
    assert CrossLingualCalibrator.load(tmp_path / "bare").random_state == 4
    with pytest.raises(ValueError, match="not fitted"):
        CrossLingualCalibrator().save(tmp_path / "new")


@pytest.mark.parametrize("name, held", [
    ("config.json", "a model"), ("index.json", "an index"), ("corpus.json", "an encoded corpus"),
    ("latest.json", "the checkpoints"),
])  # fmt: skip
def test_what_is_no_calibrator_is_not_replaced(name, held, world, tmp_path):
    (tmp_path / name).write_text("{}")
    (tmp_path / "weights").write_text("x")
    with pytest.raises(ValueError, match=f"anything but a calibrator.* holds {held}"):
        CrossLingualCalibrator(rotate=None).fit(world[0]).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "weights"])


def damage(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def edited(**changes):
    return lambda raw: json.dumps({**json.loads(raw), **changes}).encode()


@pytest.mark.parametrize("name, change, message", [
    ("calibrator.json", lambda raw: raw[:50], "damaged"), ("calibrator.json", lambda raw: b"[]", "damaged"),
    ("calibrator.json", edited(version=99), "version 99"), ("calibrator.json", edited(format="x"), "another program"),
    ("calibrator.json", edited(settings={"no_such": 1}), "no_such"),
    ("calibrator.json", edited(dimension=5), "float64"), ("calibrator.npz", lambda raw: raw[:-10], "checksum"),
])  # fmt: skip
def test_damaged_files_are_named(name, change, message, world, tmp_path):
    CrossLingualCalibrator(rotate=None).fit(world[0]).save(tmp_path / "c")
    damage(tmp_path / "c", name, change)
    with pytest.raises(ValueError, match=message) as caught:
        CrossLingualCalibrator.load(tmp_path / "c")
    assert "calibrator." in str(caught.value)


def test_missing_files_are_named(world, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"calibrator\.json"):
        CrossLingualCalibrator.load(tmp_path / "nothing")
    CrossLingualCalibrator(rotate=None).fit(world[0]).save(tmp_path / "c")
    (tmp_path / "c" / "calibrator.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"calibrator\.npz"):
        CrossLingualCalibrator.load(tmp_path / "c")


def test_nothing_pickled_is_executed(world, tmp_path):
    CrossLingualCalibrator(rotate=None).fit(world[0]).save(tmp_path / "c")
    path = tmp_path / "c" / "calibrator.npz"
    np.savez(path, means=np.array([{}], object), variances=np.zeros((3, 12)), rotations=np.zeros((0, 12, 12)))
    damage(tmp_path / "c", "calibrator.json", edited(crc32=zlib.crc32(path.read_bytes())))
    with pytest.raises(ValueError, match="damaged"):
        CrossLingualCalibrator.load(tmp_path / "c")


GOOD = {"en": np.eye(4), "de": np.eye(4)}


@pytest.mark.parametrize("settings, X, message", [
    ({"scale": "mean"}, GOOD, "`scale`.*'mean'"), ({"rotate": "vecmap"}, GOOD, "`rotate`.*'vecmap'"),
    ({"csls_k": 0}, GOOD, "`csls_k`.*0"), ({"n_refine": 0}, GOOD, "`n_refine`"),
    ({"n_refine": True}, GOOD, "`n_refine`"),
    ({"pivot": "fr"}, GOOD, r"`pivot`.*\['en', 'de'\].*'fr'"), ({}, {}, "at least one language"),
    ({}, {"en": np.eye(4), "de": np.eye(5)}, "one dimension.*4.*5"), ({}, {"en": np.ones(4)}, r"X\['en'\].*\(4,\)"),
    ({}, {"en": np.eye(4) * [[1], [np.nan], [1], [1]]}, r"X\['en'\].*row 1"), ({}, {"en": [["a"]]}, "real numbers"),
    ({}, {"en": np.eye(4), "de": np.eye(4)[:1]}, r"X\['de'\].*two vectors.*1"),
    ({}, {"en": np.full((9, 4), 0.1, "float32")}, r"X\['en'\].*same vector 9 times"),
    ({}, {"en": np.zeros((9, 4))}, "same vector"), ({}, np.eye(4), "`y` must name"),
])  # fmt: skip
def test_fit_refuses(settings, X, message):
    with pytest.raises(ValueError, match=message):
        CrossLingualCalibrator(**settings).fit(X)


@pytest.mark.parametrize("dictionary, message", [
    ({"fr": (np.eye(4), np.eye(4))}, "`dictionary`.*'fr'"), ({"en": (np.eye(4), np.eye(4))}, "into the pivot"),
    ({"de": (np.eye(4), np.eye(4)[:2])}, "4 and 2"), ({"de": (np.eye(3), np.eye(3))}, "dimension 4"),
    ({"de": (np.zeros((0, 4)), np.zeros((0, 4)))}, "at least one"),
])  # fmt: skip
def test_dictionary_refused(dictionary, message):
    with pytest.raises(ValueError, match=message):
        CrossLingualCalibrator(pivot="en").fit(GOOD, dictionary=dictionary)
    with pytest.raises(ValueError, match='rotate="procrustes"'):
        CrossLingualCalibrator(rotate=None).fit(GOOD, dictionary=dictionary)


@pytest.mark.parametrize("arguments, settings, message", [
    ((np.eye(4), "fr"), {}, r"\['en', 'de'\].*'fr'"), (({"fr": np.eye(4)},), {}, "'fr'"),
    ((np.eye(4), "en", "fr"), {}, "`to`.*'fr'"), ((np.eye(4),), {}, "`language` must be given"),
    ((GOOD, "en"), {}, "`language` must be None"), ((np.eye(4), ["en"]), {}, "4 names.*received 1"),
    ((np.eye(4), "en"), {"upto": "turn"}, "`upto`.*'turn'"), ((np.eye(4)[0], "en"), {}, r"shape \(4,\)"),
    ((np.full((2, 4), np.inf), "en"), {}, "row 0"),
])  # fmt: skip
def test_transform_refuses(arguments, settings, message):
    calibrator = CrossLingualCalibrator(rotate=None).fit(GOOD)
    with pytest.raises(ValueError, match=message):
        calibrator.transform(*arguments, **settings)


def test_input_is_left_as_it_is_and_blocks_do_not_matter(world, monkeypatch):
    vectors = world[0]["en"].copy()
    first = CrossLingualCalibrator(rotate=None).fit({"en": vectors})
    result = first.transform(vectors, "en")
    np.testing.assert_array_equal(vectors, world[0]["en"])
    monkeypatch.setattr("simretro.calibration.statistics._BLOCK_ROWS", 7)
    second = CrossLingualCalibrator(rotate=None).fit({"en": vectors})
    np.testing.assert_allclose(second.means_["en"], first.means_["en"], rtol=1e-12)
    np.testing.assert_allclose(second.transform(vectors, "en"), result, atol=1e-6)


def test_keras_is_not_imported_without_the_adversary():
    code = "import sys, simretro.calibration as c; sys.exit(any(m in sys.modules for m in ('keras', 'tensorflow')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("least, applied", [(0.3, False), (0.1, True)])
def test_halves_must_agree_in_absolute_terms_too(least, applied, monkeypatch):
    """Where all that is possible is a little, that is still a little."""
    identity = Rotation.start(np.eye(3), determined=True)
    monkeypatch.setattr(gate, "_from_identity", lambda *_: (identity, 0.2))
    monkeypatch.setattr(gate, "highest_agreement", lambda *_: 0.2)
    matrix, report = gate.learn_rotation(
        np.eye(3), np.eye(3), "procrustes", None, np.random.default_rng(0), min_agreement=least,
        min_relative_agreement=0.8, n_starts=1, adversarial={},
    )  # fmt: skip
    assert report["applied"] is applied and report["relative_agreement"] == 1 and (matrix is not None) == applied


def test_of_several_adversaries_the_one_whose_halves_agree_best_goes_on(monkeypatch):
    rng = np.random.default_rng(0)
    maps = [Rotation.start(random_rotation(3, rng, 0.5), determined=True) for _ in range(3)]
    found = iter(zip((0.2, 0.9, 0.5), maps, strict=True))

    def split(*_, **__):
        agreement, one = next(found)
        return agreement, [one, one]

    monkeypatch.setattr(gate, "split_half_agreement", split)
    monkeypatch.setattr(gate, "refine", lambda source, target, start, **_: start)
    rotation, agreement = gate._adversarial(np.eye(3), np.eye(3), rng, {"csls_k": 1}, 3, {})
    assert agreement == 0.9
    np.testing.assert_allclose(rotation.matrix, maps[1].matrix, atol=1e-12)


REFUSED = [
    ({"en": np.eye(4), "de": np.ones((3, 4))}, {}, "same vector"),  # found when the first language is done
    ({"en": np.eye(4), "de": np.eye(4)[:1]}, {}, "two vectors"), ({"fr": np.eye(5)}, {}, "`pivot`"),
    ({"en": 2 * np.eye(4), "ru": np.eye(4)}, {"dictionary": {"de": (np.eye(4), np.eye(4))}}, "`dictionary`"),
]  # fmt: skip


@pytest.mark.parametrize("X, options, message", REFUSED)
def test_a_refused_fit_changes_nothing(X, options, message):
    fresh = CrossLingualCalibrator(pivot="en")
    with pytest.raises(ValueError, match=message):
        fresh.fit(X, fingerprint="xyz", **options)
    assert vars(fresh) == fresh.get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(np.eye(4), "en")
    fitted = CrossLingualCalibrator(pivot="en", min_relative_agreement=-9).fit(GOOD, fingerprint="abc")
    before, vectors = copy.deepcopy(vars(fitted)), fitted.transform(GOOD)
    assert before["rotations_"]
    with pytest.raises(ValueError, match=message):
        fitted.fit(X, fingerprint="xyz", **options)
    np.testing.assert_equal(vars(fitted), before)
    np.testing.assert_equal(fitted.transform(GOOD, fingerprint="abc"), vectors)


def test_a_fit_that_is_interrupted_changes_nothing_either(world, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    calibrator = CrossLingualCalibrator(rotate=None).fit(world[0]).set_params(rotate="procrustes", pivot="de")
    before = copy.deepcopy(vars(calibrator))
    monkeypatch.setattr("simretro.calibration.calibrator.learn_rotation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrator.fit({language: 2 * vectors for language, vectors in world[0].items()})
    np.testing.assert_equal(vars(calibrator), before)


def test_a_calibrator_that_knows_no_model_says_so(tmp_path):
    calibrator = CrossLingualCalibrator(rotate=None).fit(GOOD)
    assert calibrator.transform(np.eye(4), "en", fingerprint=None).shape == (4, 4)
    calibrator.save(tmp_path / "c")
    says = "does not know which model's vectors it was fitted with, yours are of abc.*`fingerprint=`"
    with pytest.raises(ValueError, match=f"`fingerprint` cannot be compared: .*{says}") as caught:
        calibrator.transform(np.eye(4), "en", fingerprint="abc")
    assert "None" not in str(caught.value)
    with pytest.raises(ValueError, match=f"The calibrator in .*c cannot be compared: .*{says}"):
        CrossLingualCalibrator.load(tmp_path / "c", fingerprint="abc")
    assert CrossLingualCalibrator.load(tmp_path / "c").fingerprint_ is None

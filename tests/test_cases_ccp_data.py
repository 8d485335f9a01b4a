"""Public reports that concern the data of contrastive context prediction, each as a test of its kind.

C1 anchors without a positive, C2 last smaller batch, C5 and C6 what is no negative, C9 what decides is no Python state.
"""

import warnings

import numpy as np
import pytest

from simretro.data import ContextWindows, Document, context_windows
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(size=1000)


@pytest.fixture(autouse=True)
def numbers_from_zero(monkeypatch):
    monkeypatch.setattr(context_windows, "_first_document", lambda tables: 0)


def windows(sources, pairs=4, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ContextWindows(sources, TOKENIZER, pairs, **options)


def documents(sizes, first=0):
    """Documents of so many sentences, each a word of its own."""
    ends = first + np.cumsum(sizes)
    return [
        Document("", sentences=tuple(f"w{w}" for w in range(end - n, end))) for n, end in zip(sizes, ends, strict=True)
    ]


def positives(batch, window):
    """bool (R, R), by document and position alone."""
    documents_, places = batch["document_ids"], batch["sentence_positions"]
    distance = np.abs(places[:, None] - places[None])
    return (documents_[:, None] == documents_[None]) & (distance > 0) & (distance <= window)


# C1: an anchor without a positive
def test_c1_every_row_has_a_positive_and_masked_text_has_none():
    sources = {"en": documents([1, 2, 9, 1, 3]), "de": documents([2, 2], 500)}
    for window in (1, 3):
        data = windows(sources, mlm_share=0.4, window_sentences=window, batches_per_epoch=60)
        for batch in data:
            if batch["sides"][0] < 0:
                assert (batch["document_ids"] == -1).all() and (batch["sides"] == -1).all()
                continue
            found = positives(batch, window)
            assert found[0::2, 1::2].diagonal().all() and found[1::2, 0::2].diagonal().all()


# C2: a last smaller batch
def test_c2_batches_of_a_language_are_all_of_one_size():
    sources = {"en": documents([5] * 3), "de": documents([2, 3], 500), "fr": documents([2], 600)}
    data = windows(sources, pairs=4, mlm_share=0, batches_per_epoch=60)
    sizes = {language: set() for language in range(3)}
    for epoch in (0, 1):
        for index in range(60):
            batch = data.batch(epoch, index)
            sizes[int(batch["language_ids"][0])].add(len(batch["sides"]))
    assert sizes == {0: {8}, 1: {8}, 2: {4}}  # 15 and 5 centres do not divide by 4; `fr` has two


# C5: an own positive as a negative; C6: the same document still in the bank
def test_c5_c6_a_row_tells_where_it_stands_for_good():
    """A bank can leave out the same sentence, its neighbours and its document, whenever they come back."""
    sources = {"en": documents([4, 4, 4]), "de": documents([4, 4], 500)}
    data = windows(sources, mlm_share=0, window_sentences=2, batches_per_epoch=30)
    known, equal = {}, {}
    for epoch in range(3):
        for index in range(30):
            batch = data.batch(epoch, index)
            columns = (
                batch["document_ids"],
                batch["sentence_positions"],
                batch["token_ids"][:, 1],
                batch["sentence_keys"],
            )
            rows = zip(*columns, strict=True)
            for document, position, token, key in rows:
                place = known.setdefault(int(token), (int(document), int(position)))
                assert place == (document, position) and equal.setdefault(int(token), key) == key
    assert len(set(known.values())) == 20 and len(set(equal.values())) == 20
    assert {document for document, _ in known.values()} == set(range(5))  # over all languages


def test_c6_repeated_texts_are_known_as_such():
    """The same page twice is one document; the same sentence on two pages has one key."""
    page = Document("", sentences=("w1", "w2", "w3"))
    sources = {"en": [page, page, Document("", sentences=("w2", "w7"))]}
    data = windows(sources, pairs=5, mlm_share=0, batches_per_epoch=20)
    assert data.num_pairs == {"en": 5}
    for batch in data:
        keys = batch["sentence_keys"]
        same = batch["token_ids"][:, None, 1] == batch["token_ids"][None, :, 1]
        np.testing.assert_array_equal(keys[:, None] == keys[None], same)


# C9: Python state frozen by tracing
def test_c9_what_a_batch_is_stands_in_its_arrays():
    """Both tasks have the same arrays of the same ranks, and all that tells them apart is within them."""
    data = windows({"en": documents([4] * 9)}, mlm_share=0.5, batches_per_epoch=40)
    signatures, tasks = set(), set()
    for batch in data:
        signatures.add(tuple(sorted((name, array.ndim, str(array.dtype)) for name, array in batch.items())))
        tasks.add((bool((batch["sides"] < 0).all()), bool((batch["masked_ids"] >= 0).any())))
    assert len(signatures) == 1 and tasks == {(True, True), (False, False)}

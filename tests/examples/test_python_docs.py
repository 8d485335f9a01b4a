import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import python_docs
from python_docs import (
    clean_text,
    describe,
    installed_folders,
    load_collection,
    load_texts,
    read_docstrings,
    split_of,
    split_summary,
)
from simretro.evaluation import bm25_run, retrieval_metrics

EXAMPLES = Path(python_docs.__file__).parent
ORDINALS = "one two three four five six seven eight nine ten".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PRINT_COLLECTION = """
import sys
sys.path.insert(0, sys.argv[1])
from python_docs import load_collection, load_texts
print([(c.documents, c.queries) for c in [load_collection("train", {"pkg": sys.argv[2]})]])
print(load_texts({"pkg": sys.argv[2]}))
"""


def words(start, number=45):
    """So many words, no two of them the same."""
    return " ".join(f"{start}{LETTERS[i // 26]}{LETTERS[i % 26]}" for i in range(number))


def module_in(split):
    """A name for a module of that split."""
    return next(f"m{i}" for i in range(1000) if split_of(f"pkg.m{i}") == split)


@pytest.fixture
def write(tmp_path):
    def write(**modules):
        for name, source in modules.items():
            path = tmp_path / f"{name.replace('__', '/') if name != '__init__' else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source), encoding="utf-8")
        return {"pkg": tmp_path}

    return write


def function(name, summary, body):
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n'


def test_what_is_read_and_in_which_order(write):
    folders = write(
        b=f'''
            """The module at the end of it all.

            {words("module")}
            """
            raise RuntimeError("read, not imported")

            class Box:
                """A box for all sorts of things.

                {words("box")}
                """
                async def open(self):
                    """Opens the box if it is closed.

                    {words("open")}
                    """

                if True:
                    def close(self):
                        """Closes the box without a noise.

                        {words("close")}
                        """
            ''',
        a=f"""
            add_newdoc("pkg.core", "spin", ("turn",
                '''
                turn(angle, /)

                Turns the thing by an angle.

                {words("turn")}
                '''))
            """,
        __init__=f'"""The package as a whole thing.\n\n{words("package")}\n"""\n',
        tests__a=function("f", "A test of this or that.", words("test")),
        test_b=function("f", "A test of that or this.", words("other")),
        gen_ops=function("f", "A wrapper that was generated once.", words("generated")),
        short=function("f", "Too short to be read.", "One two three."),
    )
    found = read_docstrings(folders)
    assert [(doc.name, doc.module, doc.summary) for doc in found] == [
        ("pkg", "pkg", "The package as a whole thing"),
        ("pkg.a.pkg.core.spin.turn", "pkg.a", "Turns the thing by an angle"),
        ("pkg.b", "pkg.b", "The module at the end of it all"),
        ("pkg.b.Box", "pkg.b", "A box for all sorts of things"),
        ("pkg.b.Box.open", "pkg.b", "Opens the box if it is closed"),
        ("pkg.b.Box.close", "pkg.b", "Closes the box without a noise"),
    ]
    assert [doc.body for doc in found] == [
        words(start) for start in ("package", "turn", "module", "box", "open", "close")
    ]


def test_a_collection_and_its_texts(write):
    train, test = module_in("train"), module_in("test")
    folders = write(
        **{
            train: function("f", "Rows of a table, sorted by name.", words("rows"))
            + function("g", "Columns of a table, sorted by width.", words("columns")),
            test: function("f", "Cells of a table, sorted by colour.", words("cells"))
            + function("short", "A document that is too short to be searched.", words("short", 20))
            + function("mute", "Nothing.", words("mute")),
        }
    )
    collection = load_collection("train", folders)
    ids = [f"pkg.{train}.f", f"pkg.{train}.g", f"pkg.{test}.f"]
    assert set(collection.documents) == set(ids)
    assert collection.documents[ids[2]] == words("cells")
    assert collection.queries == {
        ids[0]: "Rows of a table, sorted by name",
        ids[1]: "Columns of a table, sorted by width",
    }
    assert collection.qrels == {ids[0]: {ids[0]: 1}, ids[1]: {ids[1]: 1}}
    assert load_collection("test", folders).queries == {ids[2]: "Cells of a table, sorted by colour"}
    expected = [words("rows"), words("columns"), words("cells"), words("short", 20), f"Nothing. {words('mute')}"]
    assert sorted(load_texts(folders)) == sorted(expected)
    with pytest.raises(ValueError, match="no query of 3 is in the split 'dev'"):
        load_collection("dev", folders)


def test_variants_and_answers_that_hold_the_query_are_left_out(write):
    train = module_in("train")
    folders = write(
        **{
            train: function("conv1d", "Convolution over 1D data, as layer.", words("one"))
            + function("conv2d", "Convolution over 2D data, as layer.", words("two"))  # the same query
            + function("alias", "Another name for the very same.", words("one"))  # the same document
            + function("variant", "A variant of the very same.", f"{words('one', 40)} {words('end')}")
            + function("cousin", "It begins alike but goes on.", f"{words('one', 39)} {words('end')}")
            + function(
                "quoting", "What the document quotes itself.", f"{words('q')}: what the document quotes, itself!"
            )
        }
    )
    collection = load_collection("train", folders)
    assert list(collection.queries) == [f"pkg.{train}.conv1d", f"pkg.{train}.cousin"]
    assert list(collection.documents) == list(collection.queries)
    texts = load_texts(folders)
    assert sum(text.startswith(words("one", 40)) for text in texts) == 1 and len(texts) == 4


@pytest.mark.parametrize(
    "docstring, summary, body",
    [
        ("Sorts a list of numbers. It is changed.\n\nMore.", "Sorts a list of numbers", "It is changed. More."),
        ("Sorts lists, e.g. those\nof numbers, in place.\n\nMore.", "Sorts lists, e.g. those of numbers, in place",
         "More."),
        ("Sorts a list of numbers\n\nMore.", "Sorts a list of numbers", "More."),
        ("sort(a, *,\n     key=None) -> list\n\nSorts a :class:`list` of ``numbers``.", "Sorts a list of numbers", ""),
        ("sort($self, /)\n--\n\nSorts the list in place.\n\nMore.", "Sorts the list in place", "More."),
        ("Sorts lists.\n\nOf numbers.", "", "Sorts lists. Of numbers."),  # too short
        ("x = sort(a) for all those lists\n\nMore.", "", "x = sort(a) for all those lists More."),
        (f"{words('long', 31)}.\n\nMore.", "", f"{words('long', 31)}. More."),
        ("f(x)", "", ""),
    ],
)  # fmt: skip
def test_split_summary(docstring, summary, body):
    assert split_summary(docstring) == (summary, body)


@pytest.mark.parametrize(
    "docstring, text",
    [
        ("Two\n  lines.\n\nTwo paragraphs.", "Two lines. Two paragraphs."),
        ("Before.\n\n>>> f(1)\n... + 1\nprinted words\n\nAfter.", "Before. After."),
        ("Before.\n```python\nx = some_code\n```\nAfter.", "Before. After."),
        ("So::\n\n    some code here\n\n    and more\n\nAfter.", "So: After."),
        (".. code-block:: python\n\n    some code\n\nAfter.", "After."),
        (".. note:: Take care.\n   Always.\n.. versionadded:: 1.2\n   It is new.\n.. a comment\nAfter.",
         "Take care. Always. After."),
        (".. math::\n\n    \\sum x_i\n\nA sum :math:`\\alpha` it is.", "A sum it is."),
        ("Parameters\n----------\naxis : int, optional\n    Along which.\nx, y : array_like\n    Points.\n\n"
         "Returns\n-------\nz : float\n    The sum.", "axis: Along which. x, y: Points. z: The sum."),
        ("Notes\n-----\nKept.\n\nSee Also\n--------\nmean : The average of it.\n\nWarns\n-----\nKept too.",
         "Kept. Kept too."),
        ("Args:\n    axis (int, optional): Along which (or none).\n    `x` (`list(str)`): Names.\nReturns:\n    Sums.",
         "axis: Along which (or none). x: Names. Sums."),
        ("Example:\n\n    words of an example\n\nNot indented.", "Not indented."),
        (":param x: The number.\n:type x: int\n:return: The sum.\n:param int y: Another.",
         "x: The number. int The sum. int y: Another."),
        ("See :func:`~numpy.mean`, :meth:`the mean <a.b.mean>` or `mean`.", "See numpy.mean, the mean or mean."),
        ("As [1]_ and [Knuth73]_ say, `here <https://a.b/c>`_ or (https://a.b/c).", "As and say, here or ()."),
        ("A [link](https://a.b) to **bold** and *thin*, *args and **kwargs, 2 * 3 and a**b.",
         "A link to bold and thin, args and kwargs, 2 * 3 and a**b."),
        ("* first point\n- second point", "first point second point"),
        ("+----+----+\n| 12 | 34 |\n+====+====+\nA table.\n 1.0 2.0 3.0", "A table."),
        ("Of %(name)s and {name} and ${name}.", "Of and and."),
        ("", ""),
    ],
)  # fmt: skip
def test_clean_text(docstring, text):
    assert clean_text(docstring) == text


def test_topics_are_cut_into_sections(write):
    first, second, third = words("first", 20), words("second", 20), words("third", 20)
    text = f"{first}\n\nA heading\n*********\n\n{second}\n\nAnother one\n===========\n\n   code here\n\n{third}\n"
    folders = write(pydoc_data__topics=f"# Autogenerated\ntopics = {{'if': {text!r}, 'for': 'Too short.'}}\n")
    assert load_texts(folders) == [first, second, f"code here {third}"]


def test_split_is_by_module_and_seed():
    splits = [split_of(f"pkg.module{i}") for i in range(4000)]
    for split, share in python_docs.SHARES.items():
        assert abs(splits.count(split) / 4000 - share) < 0.03
    assert splits == [split_of(f"pkg.module{i}", seed=0) for i in range(4000)]
    assert 0.4 < sum(a == split_of(f"pkg.module{i}", 1) for i, a in enumerate(splits)) / 4000 < 0.7


def test_the_same_whatever_the_hash_seed(write, tmp_path):
    sources = {
        f"m{i}": "".join(function(o, f"What {LETTERS[i]} does with {o} of them.", words(f"{o}{i}")) for o in ORDINALS)
        for i in range(5)
    }
    write(**sources)
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PRINT_COLLECTION, str(EXAMPLES), str(tmp_path)]
        outputs.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(outputs) == 1 and "What a does with ten of them" in outputs.pop()


def test_a_file_that_does_not_parse_is_named(write):
    folders = write(good=function("f", "A good one among the bad.", words("good")), bad=f'x = ("""{words("bad")}"""')
    with pytest.warns(UserWarning, match=r"bad\.py is left out.*never closed"):
        assert [doc.name for doc in read_docstrings(folders)] == ["pkg.good.f"]


def test_errors_name_the_argument(write):
    with pytest.raises(ValueError, match="`split` must be one of.*'dev', 'test', 'train'.*'valid'"):
        load_collection("valid")
    with pytest.raises(ValueError, match="`folders` must hold"):
        read_docstrings(write(empty=""))


def test_describe(write):
    folders = write(
        m1=function("f", "Rows of a table, sorted by name.", words("rows", 50))
        + function("g", "Nothing.", words("mute", 19)),
    )
    assert describe(folders).splitlines() == [
        "pkg: 2 docstrings, 1 documents",
        "1 documents, median 50 words; queries: "
        + ", ".join(f"{int(split == split_of('pkg.m1'))} {split}" for split in python_docs.SHARES)
        + ", median 7 words",
        "2 texts to pre-train on, 70 words",
    ]
    write(below__m=function("g", "Nothing.", words("mute", 30)))
    assert describe({"other": folders["pkg"] / "below"}).startswith("other: 1 docstrings, 0 documents")


def check_real(folders, num_documents, num_queries):
    collections = {split: load_collection(split, folders) for split in python_docs.SHARES}
    collection = collections["test"]
    assert len(collection.documents) >= num_documents and len(collection.queries) >= num_queries
    for part in collections.values():
        assert part.documents == collection.documents
    assert set().union(*(part.queries for part in collections.values())) == set(collection.documents)
    assert sum(len(part.queries) for part in collections.values()) == len(collection.documents)
    every_text = [*collection.documents.values(), *collection.queries.values()]
    for text in every_text:
        assert text == " ".join(text.split())
    for mark in (">>>", "`", ":func:", ":class:", "::", "-----", "=====", "https://"):
        assert sum(mark in text for text in every_text) <= 0.005 * len(every_text), mark
    result = retrieval_metrics(bm25_run(collection), collection.qrels, ["nDCG@10"])
    assert 0.3 < result.means["nDCG@10"] < 0.8  # neither trivial nor spoilt by the cleaning
    assert set(collection.documents.values()) <= set(load_texts(folders))


def test_documents_of_an_installed_package():
    folders = {name: folder for name, folder in installed_folders().items() if name in ("sklearn", "joblib")}
    check_real(folders, num_documents=600, num_queries=100)


@pytest.mark.slow  # half a minute where the cores are busy
def test_all_that_is_installed():
    check_real(None, num_documents=5000, num_queries=800)
    assert "Python 3" in describe() and "numpy " in describe()

"""The notebooks: stored without outputs, only with names that exist, and executed whole at a tiny size."""

import ast
import base64
import builtins
import importlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OURS = ("simretro", "home_assistant", "python_docs", "command_line")
FIGURES = {  # ids of the cells that draw
    "01_simbert.ipynb": {"mask-figure", "loss-figure", "heat-map-figure"},
    "02_retromae.ipynb": {"mask-figure", "curves-figure", "cosines-figure", "search-figure"},
    "03_ccp.ipynb": {"batch-figure", "curves-figure", "calibration-figure", "spaces-figure"},
}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def read(path):
    return json.loads(path.read_text("utf-8"))


def code_of(notebook):
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")


def problems(source):
    """Yields what is wrong with names: ours that are not there, and any that is read before it is bound."""
    known, bound = {}, set(dir(builtins))  # known: name in the notebook -> the object of ours that it stands for
    for statement in ast.parse(source).body:
        nodes = list(ast.walk(statement))
        yield from import_problems(nodes, known)
        bound |= {alias.asname or alias.name.split(".")[0] for alias in nodes if isinstance(alias, ast.alias)}
        bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        yield from (
            f"`{node.id}` is not bound" for node in nodes if isinstance(node, ast.Name) and node.id not in bound
        )
        match statement:  # an object of a class of ours has the methods of the class
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=maker))) if maker in known:
                if isinstance(known[maker], type):
                    known[name] = known[maker]
        for node in nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner in known:
                    if not hasattr(known[owner], name):
                        yield f"`{owner}` has no `{name}`"


def import_problems(nodes, known):
    """Yields which imports from a package of ours would fail; adds to `known` what the others bring."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in OURS:
                    known[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
            home = importlib.import_module(node.module)
            for alias in node.names:
                if hasattr(home, alias.name):
                    known[alias.asname or alias.name] = getattr(home, alias.name)
                else:
                    yield f"`{node.module}` has no `{alias.name}`"


def test_notebooks_are_those_known_here():
    assert [path.name for path in NOTEBOOKS] == list(FIGURES)


@every_notebook
def test_stored_in_format_4_5_without_outputs(path):
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("[a-zA-Z0-9-_]{1,64}", cell_id) for cell_id in ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]
        else:
            assert "attachments" not in cell, cell["id"]


@every_notebook
def test_uses_only_names_that_exist(path):
    assert list(problems(code_of(read(path)))) == []


@every_notebook
def test_files_that_the_text_names_exist(path):
    text = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    names = re.findall(r"`((?:simretro|examples)/[^`]+)`", text)
    assert names and [name for name in names if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    "source, found",
    [
        ("from simretro import SimBERT\nSimBERT.from_pretrained", []),
        ("from simretro import SimBART", ["`simretro` has no `SimBART`"]),
        ("import home_assistant\nhome_assistant.load_group()", ["`home_assistant` has no `load_group`"]),
        ("from simretro import SimBERT\nmodel = SimBERT(1)\nmodel.fit(model.embed('a'))", ["`model` has no `embed`"]),
        ("print(texts)\ntexts = [text for text in 'ab']", ["`texts` is not bound"]),
        ("import python_docs\ndef read(split):\n    return python_docs.load_collection(split)\nread('dev')", []),
        ("import python_docs\npython_docs.read_texts()", ["`python_docs` has no `read_texts`"]),
        ("def read(path):\n    return split\nread('dev')", ["`split` is not bound"]),
    ],
)
def test_names_are_checked_as_meant(source, found):
    assert list(problems(source)) == found


def execute(path, folder, monkeypatch, num_cells=None):
    """Executes the first cells of a notebook, in `folder`, at the tiny size; an error in a cell is raised."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for module in ("ipykernel", "matplotlib"):
        pytest.importorskip(module)
    monkeypatch.setenv("SIMRETRO_NOTEBOOK_SIZE", "tiny")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # one that draws nothing into the notebook would be inherited
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    notebook.cells = notebook.cells[:num_cells]
    resources = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()


def run_whole(name, monkeypatch):
    """Executes a notebook, checks that each of its figures is drawn once and is no empty frame; returns its output."""
    notebook = execute(ROOT / "notebooks" / name, ROOT / "notebooks", monkeypatch)
    import matplotlib.pyplot as plt

    drawn = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert cell.id not in drawn, f"{cell.id} draws more than one figure"
                drawn[cell.id] = plt.imread(io.BytesIO(base64.b64decode(output.data["image/png"])))
    assert set(drawn) == FIGURES[name]
    for cell_id, image in drawn.items():
        assert min(image.shape[:2]) > 200 and len(set(map(tuple, image[::7, ::7, :3].reshape(-1, 3)))) > 3, cell_id
    return "".join(o.text for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream")


@pytest.mark.slow
def test_simbert_notebook_draws_its_figures(monkeypatch):
    text = run_whole("01_simbert.ipynb", monkeypatch)
    scores = {name: float(value) for name, value in re.findall(r"(\w+) +R@1 ([\d.]+)", text)}
    assert scores["trained"] > scores["untrained"] + 0.1


@pytest.mark.slow
def test_retromae_notebook_draws_its_figures_and_trains(monkeypatch):
    text = run_whole("02_retromae.ipynb", monkeypatch)
    losses = [tuple(map(float, found)) for found in re.findall(r"epoch \d+: encoder ([\d.]+), decoder ([\d.]+)", text)]
    assert len(losses) == 4, "the epoch before the break, and those after it"
    for part in zip(*losses, strict=True):
        assert part[0] - part[-1] > 0.5 and list(part) == sorted(part, reverse=True)
    scores = {name.strip(): float(value) for name, value in re.findall(r"(.+?) +nDCG@10 ([\d.]+)", text)}
    assert scores["pre-trained, fine-tuned"] > 1.5 * scores["pre-trained, as it is"]


@pytest.mark.slow
def test_ccp_notebook_draws_its_figures_and_brings_the_languages_together(monkeypatch):
    text = run_whole("03_ccp.ipynb", monkeypatch)
    assert re.findall(r"(\d) of 7 centres, (\d) of 7 contexts", text) == [("7", "7"), ("7", "0"), ("0", "7")]
    epochs = re.findall(r"epoch \d+: context ([\d.]+), by chance ([\d.]+); top-1 ([\d.]+) %", text)
    loss, chance, _ = (float(value) for value in epochs[-1])
    assert len(epochs) == 4 and loss < chance - 1
    rows = {name: [float(value) for value in re.findall(r"[\d.]+", values)]
            for name, values in re.findall(r"^(untrained|CCP) +(.+)$", text, re.MULTILINE)}  # fmt: skip
    assert np.mean(rows["CCP"][:2]) > 1.5 * np.mean(rows["untrained"][:2]) and len(rows["CCP"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_notebook_finds_the_examples_from_the_root(name, monkeypatch):
    execute(ROOT / "notebooks" / name, ROOT, monkeypatch, num_cells=2)

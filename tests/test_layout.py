"""The rooms of the package and who may import whom; a new edge is a decision, taken in this table."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "simretro"
LEAVES = {"ops", "files", "arguments", "arrays", "lines", "titles"}  # import nothing of ours, may be imported by all
FACES = {"__init__", "cli", "serving", "demo"}  # may import all, hold no logic
MAY_IMPORT = {
    "tokenizers": set(),
    "checkpoints": set(),
    "calibration": set(),
    "layers": set(),
    "losses": set(),
    "retrieval": {"data"},  # documents to encode, training queries that are mined
    "training": {"evaluation"},  # monitors log what is measured there; NumPy alone
    "data": {"tokenizers"},
    "evaluation": {"retrieval"},
    "models": {"checkpoints", "data", "layers", "tokenizers"},
    "generation": {"models", "tokenizers"},
    "exports": {"checkpoints", "models", "tokenizers"},  # the last step: what is trained, in others' formats
    "methods": {"data", "generation", "layers", "losses", "models", "retrieval", "tokenizers", "training"},
}


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def own_imports(source):
    """Yields (line, dotted name) of every import of simretro, wherever in the source it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith(".") or name.split(".")[0] == "simretro":
                yield node.lineno, name


def problems(room, source):
    """Yields (line, what is wrong) for the imports of a module of `room`."""
    for line, name in own_imports(source):
        if name.startswith("."):
            yield line, f"`{name}`: write the import in full"
            continue
        target = (name.split(".") + [""])[1]
        if room in LEAVES and target != room:
            yield line, f"`{room}` is a leaf and must not import `{name}`"
        elif room not in LEAVES and target not in {room} | LEAVES | MAY_IMPORT[room]:
            yield line, f"`{room}` must not import `{name}`"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_what_its_room_may(path):
    room = room_of(path)
    if room in FACES:
        return
    assert room in LEAVES | set(MAY_IMPORT), f"`{room}` is no room: choose one, or add it to the table"
    assert [f"{path}:{line}: {problem}" for line, problem in problems(room, path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "room, source, allowed",
    [
        ("models", "from simretro.layers import UniLMMask", True),
        ("models", "from simretro.models.config import normalise", True),
        ("layers", "from simretro.ops import take", True),
        ("layers", "import simretro.models", False),
        ("layers", "from simretro import SimBERT", False),
        ("layers", "import simretro", False),
        ("layers", "def f():\n    from simretro.methods.simbert import SimBERT", False),
        ("layers", "from .unilm_mask import UniLMMask", False),
        ("layers", "from simretrograde import x", True),
        ("ops", "from simretro.files import atomic_file", False),
    ],
)
def test_table_is_read_as_meant(room, source, allowed):
    assert (list(problems(room, source)) == []) is allowed

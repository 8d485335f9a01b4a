"""What the command lines of the examples share."""

import argparse
import atexit
import contextlib
import itertools
import json
import sys
from pathlib import Path

import keras

from simretro.files import atomic_file

_claimed: set[Path] = set()  # folders of runs that `free_folder` has made


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description, and shows the defaults that tell something."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=30, width=110)

    def _get_help_string(self, action):
        told, default = action.help or "", action.default
        is_value = default not in (None, "", argparse.SUPPRESS) and not isinstance(default, bool) and default != []
        if not is_value or "default" in told:
            return told
        return f"{told} (default: {in_words(default).replace('%', '%%')})"


def in_words(value):
    """A value as it is typed."""
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def one_line_errors():
    """What is wrong with a file that the user has named is told in a line, without the way through the program."""
    try:
        yield
    except (OSError, ValueError) as error:
        stop(error)


def stop(message):
    """Ends the program as `argparse` does; a folder that it has taken and not yet used is free again."""
    _free_claimed()
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def add_strategy(parser):
    """Adds `--strategy`, for `strategy_scope`."""
    parser.add_argument("--strategy", default="none", choices=["none", "mirrored"], help="mirrored: on all devices")


def strategy_scope(name):
    """The scope in which model and optimizer are made: that of all devices, or none."""
    if name == "none":
        return contextlib.nullcontext()
    if keras.backend.backend() != "tensorflow":
        stop("--strategy mirrored needs the TensorFlow backend; on JAX use keras.distribution")
    import tensorflow as tf

    return tf.distribute.MirroredStrategy().scope()


def free_folder(folder, resume):
    """`folder`, or the next free name beside it where something is that is not to be resumed; made at once.

    So two runs that are started together do not take the same.
    """
    if resume:
        if not (folder / "checkpoints").is_dir():
            stop(f"--resume: there is no run in {folder}; give its folder as --output")
        return folder
    with one_line_errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            free = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            with contextlib.suppress(FileExistsError):
                free.mkdir()
                _claimed.add(free)
                return free


@atexit.register
def _free_claimed():
    """Removes the folders of runs that ended before they wrote anything."""
    while _claimed:
        with contextlib.suppress(OSError):  # it is not empty
            _claimed.pop().rmdir()


def deciding(options, free):
    """The options that decide the weights: all but those in `free`."""
    return {name: str(value) for name, value in vars(options).items() if name not in free}


def write_options(options, free):
    """Keeps the options in the folder of the run, for `check_same`."""
    options.output.mkdir(parents=True, exist_ok=True)
    with atomic_file(options.output / "options.json", "w") as file:
        json.dump(deciding(options, free), file, indent=1)


def check_same(options, free, start="--init"):
    """Ends the program if a run is to be resumed with other options than those that it began with.

    Args:
        options: of this call.
        free: names of options that may differ.
        start: the option that names a checkpoint to start from.
    """
    path = options.output / "options.json"
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    changes = [(name, before.get(name, value), value) for name, value in deciding(options, free).items()]
    told = [f"--{name.replace('_', '-')} was {old}, is {new}" for name, old, new in changes if old != new]
    if told:
        stop(
            f"--resume: the run in {options.output} was begun with other options: {'; '.join(told)}. To go on with "
            f"these, begin another run with {start} {options.output / 'model'}"
        )

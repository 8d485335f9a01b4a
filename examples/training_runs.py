"""What the examples that train have in common: options, new models, optimizer, what is kept of a run."""

from importlib.util import find_spec
from pathlib import Path

import keras

from command_line import add_strategy, in_words, stop
from simretro import build_transformer_model
from simretro.checkpoints import read_config
from simretro.training import OPTIMIZER_NAMES, EmbeddingMonitor, build_optimizer
from simretro.training.embedding_monitor import LEAST_TEXTS

# Often enough for little to be lost, and for a collapse to be seen before hours are; seldom enough to cost nothing.
SAVE_STEPS, MONITOR_STEPS = 500, 500


def add_model_options(group, vocab_size=None, new_parts=()):
    """Adds what says where the weights come from; `new_encoder` makes those of a new model."""
    group.add_argument("--init", help="checkpoint (folder or hub name), or the path of a config for new weights")
    if new_parts:
        group.add_argument("--new-parts", nargs="*", default=[], choices=new_parts, help="parts the checkpoint lacks")
    group.add_argument("--vocab-size", type=int, default=vocab_size, help="of the vocabulary learnt for a new model")
    add_network_options(group)
    group.add_argument("--recompute", action="store_true", help="less memory, a third more work")


def add_network_options(group):
    """Adds how the network computes."""
    group.add_argument("--dropout", type=float, help="replaces the dropout rates of the config")
    group.add_argument(
        "--dtype", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"], help="of the computation"
    )


def add_run_options(group, output):
    """Adds where a run is kept and shown, with `output` as its folder."""
    group.add_argument("--tensorboard", action="store_true", help="needs `pip install tensorboard`")
    add_last_options(group, output)


def add_last_options(group, output):
    """Adds what every example has that trains."""
    group.add_argument(
        "--save-steps", type=int, default=SAVE_STEPS,
        help="save whenever so many steps are done, besides the ends of epochs; 0: only there",
    )  # fmt: skip
    add_strategy(group)
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    group.add_argument("--output", type=Path, default=Path(output), help="folder; if it is there, one beside it")
    group.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    group.add_argument("--quick", action="store_true", help="a few steps of a tiny model, to see that all runs")


def add_optimizer(group, default="adamw"):
    """Adds what `scheduled_optimizer` takes beside the rate; without a default it is to be filled in."""
    told = "default: muon for new weights, adamw from a checkpoint" if default is None else "muon is for new weights"
    group.add_argument("--optimizer", choices=OPTIMIZER_NAMES, default=default, help=told)
    group.add_argument("--warmup-share", type=float, default=0.1, help="share of the steps with a rising rate")


def is_config(init):
    """Whether `--init` names a config, so that the weights are new."""
    return bool(init) and init.endswith(".json") and Path(init).is_file()


def fill_in(options, defaults):
    """Sets the options that were not given."""
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def defaults_told(flag, own, small):
    """For the end of `--help`: the defaults that differ with and without the user's own data."""
    pairs = {name: [own.get(name), value] for name, value in small.items()}
    told = [
        f"--{name.replace('_', '-')} " + ", ".join("none" if value is None else in_words(value) for value in values)
        for name, values in pairs.items()
    ]
    return f"defaults with {flag}, and without:\n  " + "\n  ".join(told)


def network_options(options):
    """What building and loading a model take of `add_model_options`."""
    return {"dropout_rate": options.dropout, "dtype": options.dtype, "recompute": options.recompute}


def new_encoder(options, tokenizer, small, tiny, **parts):
    """An encoder with new weights, of the config that `--init` names or of the small one.

    Args:
        options: with `init` and `quick`.
        tokenizer: whose vocabulary it gets.
        small: dict, the config without `--init`.
        tiny: dict, the sizes with `--quick`.
        parts: of `build_transformer_model`.
    """
    config = read_config(options.init) if options.init else {**small, "max_position_embeddings": 512}
    if options.quick:
        config |= {**tiny, "embedding_size": tiny["hidden_size"]}
    config |= {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    return build_transformer_model(config, **network_options(options), **parts)


def scheduled_optimizer(options, total_steps, **settings):
    """The optimizer, whose rate rises for a share of the steps and falls to the last one."""
    return build_optimizer(
        options.optimizer,
        options.learning_rate,
        warmup_steps=round(options.warmup_share * total_steps),
        total_steps=total_steps,
        global_clipnorm=1.0,
        **settings,
    )


def begin_run(checkpoint, model, options):
    """Takes the folder of the checkpoints, and goes on from the last one with `--resume`; returns the first epoch."""
    checkpoint.lock()
    return checkpoint.restore(model) if options.resume else 0


def embedding_monitor(encode, texts):
    """A list of the callback that watches the vectors of different texts; of none where there are too few."""
    if len(texts) < LEAST_TEXTS:
        print(f"There are {len(texts)} different texts: too few to watch their vectors, which takes {LEAST_TEXTS}.")
        return []
    return [EmbeddingMonitor(encode, texts, MONITOR_STEPS)]


class Board(keras.callbacks.TensorBoard):
    """TensorBoard that shows every epoch and, over the steps, every evaluation; to stand behind `evaluations`."""

    def __init__(self, folder, evaluations):
        super().__init__(folder, update_freq=50)
        self.evaluations = evaluations

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._num_shown = [0] * len(self.evaluations)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._show_evaluations()

    def on_epoch_end(self, epoch, logs=None):
        # Keras shows an epoch only if it ends with a step that is a multiple of `update_freq`.
        with self.summary.record_if(True):
            super().on_epoch_end(epoch, logs)
        self._show_evaluations()

    def _show_evaluations(self):
        for place, evaluation in enumerate(self.evaluations):
            for entry in evaluation.history[self._num_shown[place] :]:
                with self.summary.record_if(True):
                    for name in entry.keys() - {"step"}:
                        self.summary.scalar(name, entry[name], step=entry["step"])
            self._num_shown[place] = len(evaluation.history)


def tensorboard(options, evaluations=()):
    """A list of the callback that `--tensorboard` asks for, or of none."""
    if not options.tensorboard:
        return []
    if find_spec("tensorboard") is None:
        stop("--tensorboard needs another package: pip install tensorboard")
    return [Board(options.output / "logs", list(evaluations))]


def facts_of(options, checkpoint):
    """What a saved model tells of its training."""
    told = {key: str(value) for key, value in vars(options).items()}
    return {"options": told, "history": checkpoint.history, "evaluations": checkpoint.evaluations}

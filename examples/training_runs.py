"""What the examples that train have in common: options, new models, optimizer, what is kept of a run."""

from pathlib import Path

import keras

from command_line import add_strategy
from simretro import build_transformer_model
from simretro.checkpoints import read_config
from simretro.training import build_optimizer


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
    group.add_argument("--dtype", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"])


def add_run_options(group, output):
    """Adds where and how long a run is kept, with `output` as its folder."""
    group.add_argument("--save-steps", type=int, help="save every so many steps, too, not only at epochs' ends")
    group.add_argument("--tensorboard", action="store_true", help="needs `pip install tensorboard`")
    add_last_options(group, output)


def add_last_options(group, output):
    """Adds what every example has that trains."""
    add_strategy(group)
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--output", type=Path, default=Path(output))
    group.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    group.add_argument("--quick", action="store_true", help="a few steps of a tiny model, to see that all runs")


def add_warmup(group):
    """Adds `--warmup-share`, for `scheduled_optimizer`."""
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
    told = [f"--{name.replace('_', '-')} {own.get(name)}, {value}" for name, value in small.items()]
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
    """AdamW whose rate rises for a share of the steps and falls to the last one."""
    return build_optimizer(
        "adamw",
        options.learning_rate,
        warmup_steps=round(options.warmup_share * total_steps),
        total_steps=total_steps,
        global_clipnorm=1.0,
        **settings,
    )


def tensorboard(options):
    """A list of the callback that `--tensorboard` asks for, or of none."""
    return [keras.callbacks.TensorBoard(options.output / "logs", update_freq=50)] if options.tensorboard else []


def facts_of(options, history):
    """What a saved model tells of its training."""
    return {"options": {key: str(value) for key, value in vars(options).items()}, "history": history}

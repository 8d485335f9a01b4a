"""What decides a training beside its variables, as JSON values, and in what two runs differ."""

import json
import warnings

from simretro.arguments import plain, warn


def data_facts(data) -> dict | None:
    """What a data set says of itself by `facts()`, None where it has no such method."""
    facts = getattr(data, "facts", None)
    return facts() if callable(facts) else None


def model_facts(model) -> dict | None:
    """The settings of a method and the config of its encoder; None for a model that has neither.

    These are the attributes that `settings_names` names, and the dict `encoder.config`. What only changes how the same
    numbers are computed is in neither: dtype, `recompute`, `chunk_size`, the engine.
    """
    facts = {name: getattr(model, name) for name in getattr(model, "settings_names", ())}
    config = getattr(getattr(model, "encoder", None), "config", None)
    if isinstance(config, dict):
        facts |= {f"encoder.config[{name!r}]": value for name, value in config.items()}
    # As JSON gives it back: a tuple is a list. What it does not know cannot be compared, and is null.
    return json.loads(json.dumps(plain(facts), default=lambda value: None)) or None


def differences(before: dict | None, now: dict | None, template: str) -> str:
    """In words; empty where nothing is known of one of the two.

    Args:
        before: facts of a checkpoint.
        now: facts of today.
        template: str, with the fields `name`, `before` and `now`.
    """
    if not before or not now:
        return ""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(template.format(name=name, before=before.get(name), now=now.get(name)) for name in names)


def check_settings(before: dict | None, now: dict | None, path) -> None:
    """Raises ValueError if a model has not the settings of a checkpoint, naming all that differ.

    A setting that only one of them has is passed over: versions of this package differ in what they have.

    Args:
        before: `model_facts` in the checkpoint; None in one of an earlier version.
        now: `model_facts` of the model.
        path: of the checkpoint.
    """
    before, now = before or {}, now or {}
    here = {name: now[name] for name in before if name in now}
    there = {name: before[name] for name in here}
    different = differences(there, here, "`{name}`: {before!r} there, {now!r} here")
    if different:
        raise ValueError(
            f"{path} is of a run with other settings; they differ in {different}. Give the model the settings of that "
            "run to go on with it; or start a new run, in another `folder`, from the weights that it has saved."
        )


def check_tokenizer(before: dict | None, now: dict | None, path) -> None:
    """Raises ValueError if data have not the tokenizer of a checkpoint's; other texts may be gone on with.

    Args:
        before: `data_facts` in the checkpoint.
        now: `data_facts` of the data.
        path: of the checkpoint.
    """
    there, here = ((facts or {}).get("tokenizer") for facts in (before, now))
    if there is not None and here is not None and there != here:
        raise ValueError(
            f"{path} is of a run on data of another `tokenizer`: to its weights the ids now mean other tokens. Give "
            "`data` and model the tokenizer of that run (one that is learnt from texts is the same as long as these "
            "are), or another `folder` to start a new run."
        )


def check_position(state: dict, data, path) -> None:
    """Refuses data with which the run of a checkpoint cannot go on.

    Args:
        state: of the checkpoint.
        data: the training data, or None.
        path: of the checkpoint.
    Raises: ValueError for another tokenizer, and within an epoch for any other data; at the end of one a warning tells.
    """
    before, now = state.get("data"), data_facts(data)
    check_tokenizer(before, now, path)
    different = differences(before, now, "`{name}` was {before!r}, is {now!r}")
    if not state["step_in_epoch"]:
        if different:
            warn(f"{path} is of a run on other data; now it goes on with these: {different}.")
        return
    if data is None:
        warnings.warn(
            f"{path} was written within epoch {state['epoch'] + 1}. Without `data` that epoch starts again from "
            "its first batch.",
            stacklevel=4,
        )
    elif different:
        raise ValueError(
            f"{path} was written within an epoch, which other data cannot end. The `data` differ: {different}. "
            "Give the data of the interrupted run, with the same settings."
        )
    elif data.num_batches != state["num_batches"]:
        raise ValueError(
            f"{path}: written after {state['step_in_epoch']} of {state['num_batches']} batches of an epoch, but "
            f"`data` has {data.num_batches}. Give the data of the interrupted run, with the same settings."
        )

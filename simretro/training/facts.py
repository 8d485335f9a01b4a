"""What decides a training beside its variables, as JSON values, and in what two runs differ."""

import json

from simretro.arguments import plain


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

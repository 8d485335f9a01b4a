"""What a checkpoint is told, checked: its arguments, and the model and the numbers that it restores."""

from simretro.training.periodic import PeriodicEvaluation
from simretro.training.state import misfits

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "rank_mean")
_HIGHER_IS_BETTER = ("acc", "auc", "recall", "precision", "mrr", "ndcg", "spearman", "pearson", "f1", "map", "r@")


def direction(monitor, mode):
    """1 where higher is better, -1 where lower is."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(f'`mode` must be "auto", "min" or "max"; received {mode!r}.')
    if mode != "auto" or monitor is None:
        return -1 if mode == "min" else 1
    lower = any(word in monitor.lower() for word in _LOWER_IS_BETTER)
    higher = any(word in monitor.lower() for word in _HIGHER_IS_BETTER)
    if lower == higher:
        raise ValueError(f'`mode` must be "min" or "max" for monitor={monitor!r}: its name does not tell.')
    return -1 if lower else 1


def checked_data(data):
    """The training data, which must tell and be told their position; None where there are none."""
    if data is None:
        return None
    if not callable(getattr(data, "resume", None)):
        raise ValueError(
            f"`data` must have a method `resume(epoch, step)`; received {type(data).__name__}. Leave it out to save at "
            "the end of epochs only."
        )
    if data.num_batches is None:
        raise ValueError("`data` must have a fixed number of batches an epoch; received num_batches=None.")
    return data


def checked_evaluations(evaluations):
    """`PeriodicEvaluation`s as a list; raises ValueError for others, and for two of one name."""
    evaluations = list(evaluations)
    for callback in evaluations:
        if not isinstance(callback, PeriodicEvaluation):
            raise ValueError(f"`evaluations` must be `PeriodicEvaluation`s; received a {type(callback).__name__}.")
    names = [name_of(callback) for callback in evaluations]
    if len(set(names)) < len(names):
        raise ValueError(f"`evaluations` must have different names; received {names}. Give each a `name`.")
    return evaluations


def name_of(evaluation):
    """Under which an evaluation's numbers are kept."""
    return evaluation.name or "evaluation"


def check_ready(model):
    """Raises ValueError for a model without an optimizer or without variables."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError("`model` must be compiled before `restore`, so that its optimizer can be restored.")
    if not model.built:
        raise ValueError("`model` must have its variables before `restore`: call it once on a batch.")


def check_fit(variables, arrays, path):
    """Raises ValueError naming all variables that do not fit the arrays of a checkpoint, both by group and name."""
    problems = [
        f"{path / group}.safetensors: {problem}"
        for group in arrays
        for problem in misfits(variables[group], arrays[group])
    ]
    if problems:
        raise ValueError(
            f"The checkpoint does not fit the model. {'; '.join(problems)}. Build model and optimizer with the "
            "settings of the interrupted run, or give another `folder` to start a new one."
        )

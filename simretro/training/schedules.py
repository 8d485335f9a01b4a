"""Learning rates that are straight lines between given steps, as bert4keras' `piecewise_linear_lr`."""

import math
from collections.abc import Iterable, Mapping

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="simretro")
class PiecewiseLinear(keras.optimizers.schedules.LearningRateSchedule):
    """`learning_rate` times a ratio that is given at some steps and linear between them.

    Before the first step given, the ratio rises from 0 at step 0; after the last one it keeps the last value.
    `{1000: 1, 3000: 0.1}` warms up for 1000 steps, then falls to a tenth until step 3000 and stays there.
    The optimizer asks with the number of updates done so far: a warm-up's first update has learning rate 0.

    Args:
        learning_rate: positive float, what ratio 1 stands for.
        schedule: {step: ratio} or pairs (step, ratio); steps are ints >= 0, ratios finite and >= 0.
    Call args:
        step: int scalar, the number of updates done.
    Returns: float32 scalar.
    Raises: ValueError if an argument is out of range.
    """

    def __init__(self, learning_rate: float, schedule: Mapping[int, float] | Iterable):
        super().__init__()
        self.learning_rate = _positive(learning_rate)
        self.points = _checked_points(schedule)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        ratio = ops.ones_like(step) * self.points[0][1]
        for (start, start_ratio), (end, end_ratio) in zip(self.points, self.points[1:], strict=False):
            line = start_ratio + (step - start) * ((end_ratio - start_ratio) / (end - start))
            # The end itself is set apart: the last value, often 0, is hit exactly and kept.
            ratio = ops.where(step > start, ops.where(step < end, line, end_ratio), ratio)
        return ratio * self.learning_rate

    def get_config(self) -> dict:
        # Pairs and not a dict: JSON would turn the steps into strings.
        return {"learning_rate": self.learning_rate, "schedule": [list(point) for point in self.points]}


@keras.saving.register_keras_serializable(package="simretro")
class WarmupLinearDecay(PiecewiseLinear):
    """Linear warm-up from 0, then linear decay: `PiecewiseLinear` with the two lines of BERT's training.

    Args:
        learning_rate: positive float, the highest value, reached after `warmup_steps` updates.
        warmup_steps: int >= 0; 0 starts at the highest value.
        total_steps: int > `warmup_steps`; from here on the ratio is `end_ratio`.
        end_ratio: float in [0, 1]. Default 0.
    Raises: ValueError if an argument is out of range.
    Reference: Devlin et al., 2019, https://arxiv.org/abs/1810.04805, appendix A.2
    """

    def __init__(self, learning_rate: float, warmup_steps: int, total_steps: int, end_ratio: float = 0.0):
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be at least 0 and less than `total_steps`; "
                f"received warmup_steps={warmup_steps!r}, total_steps={total_steps!r}."
            )
        if not 0 <= end_ratio <= 1:
            raise ValueError(f"`end_ratio` must be between 0 and 1; received {end_ratio!r}.")
        super().__init__(learning_rate, {warmup_steps: 1.0, total_steps: end_ratio})
        self.warmup_steps, self.total_steps, self.end_ratio = warmup_steps, total_steps, end_ratio

    def get_config(self) -> dict:
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "end_ratio": self.end_ratio,
        }


def _positive(learning_rate):
    if not (isinstance(learning_rate, (int, float)) and math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"`learning_rate` must be a positive number; received {learning_rate!r}.")
    return float(learning_rate)


def _checked_points(schedule):
    points = sorted(schedule.items() if isinstance(schedule, Mapping) else [tuple(point) for point in schedule])
    if not points:
        raise ValueError("`schedule` must give the ratio at one step at least; received none.")
    steps = [step for step, _ in points]
    if len(set(steps)) < len(steps) or any(int(step) != step or step < 0 for step in steps):
        raise ValueError(f"The steps of `schedule` must be different ints >= 0; received {steps}.")
    for step, ratio in points:
        if not (math.isfinite(ratio) and ratio >= 0):
            raise ValueError(f"The ratios of `schedule` must be finite and >= 0; received {ratio!r} at step {step}.")
    if points[0][0] > 0:
        points.insert(0, (0, 0.0))
    return [(int(step), float(ratio)) for step, ratio in points]

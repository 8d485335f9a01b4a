"""What training needs and knows no method: schedules, optimizers, checkpoints, callbacks, steps."""

import importlib

_HOMES = {
    "AdamW": "optimizers",
    "CrossLingualMonitor": "cross_lingual_monitor",
    "EmbeddingMonitor": "embedding_monitor",
    "HardNegativeMining": "hard_negatives",
    "LearningRate": "callbacks",
    "Muon": "optimizers",
    "OPTIMIZER_NAMES": "optimizers",
    "PeriodicEvaluation": "periodic",
    "PiecewiseLinear": "schedules",
    "TerminateOnNonFinite": "callbacks",
    "Throughput": "callbacks",
    "TrainingCheckpoint": "checkpoint",
    "WarmupLinearDecay": "schedules",
    "averaged_weights": "averages",
    "build_optimizer": "optimizers",
    "check_distribution": "guards",
    "latest_checkpoint": "store",
    "mean_tokens_per_step": "callbacks",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    # On first use: reading a checkpoint folder, for one, needs no Keras.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

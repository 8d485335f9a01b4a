"""Losses: tensors in, scalars out; no variables, no model. All are computed in float32 and run on every backend."""

from simretro.losses.context import context_loss, context_pairs
from simretro.losses.contrastive import contrastive_loss, in_batch_similarity_loss, known_positives
from simretro.losses.distillation import count_distilled, distillation_loss, group_scores
from simretro.losses.vocabulary import bag_of_words_loss, fused_cross_entropy, max_pooled_logits

__all__ = [
    "bag_of_words_loss",
    "context_loss",
    "context_pairs",
    "contrastive_loss",
    "count_distilled",
    "distillation_loss",
    "fused_cross_entropy",
    "group_scores",
    "in_batch_similarity_loss",
    "known_positives",
    "max_pooled_logits",
]

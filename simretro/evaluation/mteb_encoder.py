"""Models of this library in the tasks of the package mteb, version 2."""

import hashlib
import json
from collections.abc import Iterable

import numpy as np

from simretro.evaluation.rows import text_list
from simretro.retrieval import normalize_rows
from simretro.retrieval.encoders import encoders_of


class MtebEncoder:
    """What `mteb.evaluate` takes: `mteb.evaluate(MtebEncoder(model), tasks)`. mteb makes the texts and the metrics.

    Documents of a retrieval task are encoded as passages, with the model's own prefix; its queries, and the texts of
    all other tasks, as queries. Prompts of the tasks are not used.

    Args:
        model: `BiEncoder`, `SentenceEncoder` or another model with `encode`.
        name: str with one slash, as mteb files its results.
        revision: str; None = a hash of all that the vectors and scores depend on, so that mteb does not take the
            results of other weights, prefixes or lengths for these.
        similarity: "cosine" or "dot"; None = the model's own, or "cosine".
    Raises: ValueError for a name without a slash, or what is no model.
    """

    def __init__(
        self, model, name: str = "simretro/model", revision: str | None = None, *, similarity: str | None = None
    ):
        if name.count("/") != 1:
            raise ValueError(f"`name` must be like 'organization/model', as mteb wants it; received {name!r}.")
        if not hasattr(model, "encode"):
            raise ValueError(f"`model` must have `encode`; received {type(model).__name__}.")
        encoders = encoders_of(model, similarity)
        self.model = model
        self.name = name
        self.revision = revision or _revision(model, encoders)
        self.scoring = encoders.similarity

    def encode(
        self,
        inputs: Iterable[dict],
        *,
        task_metadata,
        hf_split: str,
        hf_subset: str,
        prompt_type=None,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Vectors, float32 (N, d), of the texts of mteb's batches.

        Args:
            inputs: batches, each with a list of str under "text".
            task_metadata: of mteb, for messages.
            hf_split, hf_subset: not read.
            prompt_type: "document", "query" or None.
            batch_size: see `SentenceEncoder.encode`.
            show_progress_bar: bool.
        Raises: ValueError for a task without texts; TypeError for one str in place of a list.
        """
        texts = []
        for batch in inputs:
            if "text" not in batch:
                raise ValueError(f"The task {task_metadata.name} has no texts, only {', '.join(batch)}.")
            texts += text_list(batch["text"], "text")
        kind = "passages" if prompt_type == "document" else "queries"
        encode = getattr(self.model, f"encode_{kind}", self.model.encode)
        return np.asarray(encode(texts, batch_size=batch_size, show_progress=show_progress_bar), "float32")

    def similarity(self, embeddings1, embeddings2) -> np.ndarray:
        """Scores (N, M) of vectors (N, d) and (M, d), arrays or tensors on the CPU."""
        first, second = self._comparable(embeddings1), self._comparable(embeddings2)
        return first @ second.T

    def similarity_pairwise(self, embeddings1, embeddings2) -> np.ndarray:
        """Scores (N,) of rows, (N, d) both."""
        return (self._comparable(embeddings1) * self._comparable(embeddings2)).sum(axis=1)

    def _comparable(self, vectors):
        vectors = np.atleast_2d(np.asarray(vectors, "float32"))
        return normalize_rows(vectors) if self.scoring == "cosine" else vectors

    @property
    def mteb_model_meta(self):
        """`mteb.models.ModelMeta`; what mteb does not need is left empty."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        said = {"name": self.name, "revision": self.revision, "similarity_fn_name": ScoringFunction(self.scoring)}
        return ModelMeta.create_empty({**said, "open_weights": True, "use_instructions": False})


def _revision(model, encoders):
    facts = [encoders.fingerprint, encoders.passage_prefix, encoders.similarity]
    if hasattr(model, "encode_queries"):
        facts += [model.query_sentence_encoder.fingerprint(), model.query_prefix]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

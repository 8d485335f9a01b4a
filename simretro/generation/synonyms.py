"""Similar sentences: sample, drop copies of the source, rank by cosine."""

from collections.abc import Iterable

from simretro.arguments import check_int
from simretro.generation.sampling import generate
from simretro.models import SentenceEncoder
from simretro.models.config import max_tokens


class SynonymGenerator:
    """Generates sentences that mean the same as a given one.

    Args:
        sentence_encoder: `SentenceEncoder` whose encoder is a UniLM with an MLM head; it generates and ranks.
    Reference: Su, 2020, https://kexue.fm/archives/7427
    """

    def __init__(self, sentence_encoder: SentenceEncoder):
        self.sentence_encoder = sentence_encoder
        self.tokenizer = sentence_encoder.tokenizer

    def __call__(
        self,
        text_or_texts: str | Iterable[str],
        n: int = 100,
        k: int = 20,
        with_scores: bool = False,
        top_k: int | None = 5,
        top_p: float | None = None,
        temperature: float = 1.0,
        maxlen: int = 32,
        seed: int | None = None,
        batch_size: int = 32,
    ) -> list:
        """Samples n sentences and returns the k that are closest to the source.

        Args:
            text_or_texts: one text, or several, which are worked on together.
            n: int, samples of each text; equal ones count once.
            k: int, sentences returned at most.
            with_scores: bool, return pairs (sentence, cosine).
            top_k: int or None, see `generate`.
            top_p: float or None, see `generate`.
            temperature: float, see `generate`.
            maxlen: int, longest sentence in tokens, special ones included, of sources and outputs.
            seed: int or None, see `generate`.
            batch_size: int, of the encoder that ranks.
        Returns: list of sentences by descending cosine, for several texts a list of such lists in their order. It is
            shorter than k where there are fewer different ones; the source itself is never among them.
        Raises: ValueError if `k` or `maxlen` is no int, or too small, or for an argument that `generate` refuses.
        """
        k, maxlen = check_int("k", k, 1), check_int("maxlen", maxlen, 3)
        texts = [text_or_texts] if isinstance(text_or_texts, str) else list(text_or_texts)
        if not texts:
            return []
        tokenizer, encoder = self.tokenizer, self.sentence_encoder.encoder
        sources = self._source_ids(texts, maxlen)
        outputs = generate(
            encoder,
            sources,
            maxlen - 1,  # so that [CLS] output [SEP] has at most `maxlen` tokens
            tokenizer.sep_token_id,
            n,
            top_k,
            top_p,
            temperature,
            seed,
            min_new_tokens=2,  # an empty sentence is no synonym
            # Rows that pad the token table are no tokens either.
            forbidden_ids=[*tokenizer.special_ids, *range(tokenizer.vocab_size, encoder.config["vocab_size"])],
        )
        candidates = self._candidates(texts, sources, outputs)
        results = self._ranked(texts, candidates, k, batch_size)
        if not with_scores:
            results = [[candidate for candidate, _ in result] for result in results]
        return results[0] if isinstance(text_or_texts, str) else results

    def _source_ids(self, texts, maxlen):
        limit = max_tokens(self.sentence_encoder.encoder.config)
        if limit is not None:
            maxlen = min(maxlen, limit - 2)  # room for an output of one token and its end
        token_ids, _ = self.tokenizer.encode_batch(texts, maxlen=maxlen)
        pad = self.tokenizer.pad_token_id
        return [row[row != pad].tolist() for row in token_ids]

    def _candidates(self, texts, sources, outputs):
        """For each text its different outputs as strings, without those that are the text once more.

        What is decoded may differ from the text in its letters and still be the same tokens (`3:30`, `3: 30`), so the
        ids are compared, those drawn and those of the decoded string; with the whole text, and with what was read of a
        text that is too long.
        """
        distinct = [list(dict.fromkeys(tuple(ids) for ids in rows)) for rows in outputs]
        decoded = self.tokenizer.decode_batch([ids for rows in distinct for ids in rows])
        encoded = self.tokenizer.encode_ragged(decoded)
        own = [
            {tuple(whole), tuple(read[1:-1])}
            for whole, read in zip(self.tokenizer.encode_ragged(texts), sources, strict=True)
        ]
        candidates, at = [], 0
        for copies, rows in zip(own, distinct, strict=True):
            span = range(at, at + len(rows))
            kept = [decoded[i] for i, ids in zip(span, rows, strict=True) if copies.isdisjoint((ids, (*encoded[i],)))]
            candidates.append([text for text in dict.fromkeys(kept) if text])
            at += len(rows)
        return candidates

    def _ranked(self, texts, candidates, k, batch_size):
        everything = texts + [candidate for row in candidates for candidate in row]
        vectors = self.sentence_encoder.encode(everything, batch_size, normalize=True, show_progress=False)
        results, at = [], len(texts)
        for i, row in enumerate(candidates):
            scores = vectors[at : at + len(row)] @ vectors[i]
            ranked = sorted(zip(row, scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
            results.append(ranked[:k])
            at += len(row)
        return results

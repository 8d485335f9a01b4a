"""A tokenizer of words with the interface that the data room uses."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class ToyTokenizer:
    """Words between blanks, in lower case; `ab+cd` are two tokens of one word, `un+known` words are [UNK].

    The word `nothing` has no tokens.
    """

    def __init__(self, words=(), size=200):
        self.vocab = {token: i for i, token in enumerate([*SPECIAL, *words, *(f"w{i}" for i in range(size))])}
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = range(5)
        self.special_ids = [0, 1, 2, 4]
        self.vocab_size = len(self.vocab)

    def encode_ragged(self, texts):
        return [[i for i, _ in self._pieces(text)] for text in texts]

    def word_ids(self, token_ids):
        """As of the real tokenizers: a word begins behind a special and wherever a piece is not marked with +."""
        words, number, behind_special = [], -1, True
        inverse = {i: token for token, i in self.vocab.items()}
        for i in token_ids:
            special = i in (*self.special_ids, self.sep_token_id)
            if not special and (behind_special or not inverse[i].startswith("+")):
                number += 1
            words.append(None if special else number)
            behind_special = special
        return words

    def fingerprint(self):
        return str(sorted(self.vocab.items()))

    def _pieces(self, text):
        for word in text.lower().split():
            first, *rest = word.split("+")
            if first != "nothing":
                for piece in (first, *(f"+{piece}" for piece in rest)):
                    yield self.vocab.get(piece, self.unk_token_id), piece


def texts_of(batch, tokenizer):
    """[(a, b)] of a batch, as tuples of ids, one for each row."""
    rows = []
    for ids, segments in zip(batch["token_ids"], batch["segment_ids"], strict=True):
        end = len(segments) - list(segments[::-1]).index(1)  # behind the closing [SEP]
        start = list(segments).index(1)
        rows.append((tuple(ids[1 : start - 1].tolist()), tuple(ids[start : end - 1].tolist())))
    return rows

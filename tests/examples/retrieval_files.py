"""A small collection of made-up texts in all shapes that the examples for retrievers read."""

import json
import random

TOPICS = ["door window house", "light lamp night", "river water stone", "bread butter kitchen", "green leaf garden"]
FILLER = "open close paper yellow music small large old new quiet".split()


def make_texts(number=60, seed=0):
    """({id: document}, {id: query}, {query id: {document id: 1}}); query `q7` asks for `d7`."""
    rng = random.Random(seed)
    documents, queries = {}, {}
    for i in range(number):
        words = [*TOPICS[i % len(TOPICS)].split(), f"number{i}", *rng.choices(FILLER, k=rng.randint(3, 12))]
        rng.shuffle(words)
        documents[f"d{i}"] = " ".join(words) + "."
        queries[f"q{i}"] = f"{rng.choice(TOPICS[i % len(TOPICS)].split())} number{i} {i}"
    return documents, queries, {f"q{i}": {f"d{i}": 1} for i in range(number)}


def write_beir(folder, splits=("train", "dev", "test")):
    documents, queries, qrels = make_texts()
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    bounds = {"train": (0, 36), "dev": (36, 46), "test": (46, 60)}
    for split in splits:
        chosen = list(qrels.items())[slice(*bounds[split])]
        lines = [f"{query}\t{document}\t1\n" for query, found in chosen for document in found]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), "utf-8")
    return folder


def write_jsonl(path, scores=False, negatives=True):
    documents, queries, qrels = make_texts()
    texts = list(documents.values())
    with open(path, "w", encoding="utf-8") as file:
        for i, (query, found) in enumerate(qrels.items()):
            record = {"query": queries[query], "pos": [documents[d] for d in found]}
            if negatives:
                record["neg"] = [texts[(i + 5) % len(texts)], texts[(i + 10) % len(texts)]]
            if scores:
                record |= {"pos_scores": [5.0], "neg_scores": [1.0, -1.0]}
            file.write(json.dumps(record) + "\n")
    return path


def write_tsv(path):
    documents, queries, qrels = make_texts()
    texts = list(documents.values())
    lines = [
        f"{queries[q]}\t{documents[d]}\t{texts[(i + 5) % 60]}\n" for i, (q, f) in enumerate(qrels.items()) for d in f
    ]
    path.write_text("".join(lines), "utf-8")
    return path

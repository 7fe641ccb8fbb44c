"""Draw a run's features of D^u in two dimensions, coloured by true class and by prediction."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.plots.embedding import embedding, read_features
from ctxgcd.tables.display import benchmark_name
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--run", required=True, help="name of the run in the title")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--split", type=Path, required=True)
    arguments = parser.parse_args()
    _, rows, features = read_features(arguments.predictions, arguments.embeddings)
    old = rows.old.astype(bool).tolist()
    # A cluster without a class (K exceeds the number of classes) has no name and keeps its number.
    names = read_split(arguments.split).drop_duplicates("class_id").set_index("class_id").class_name.to_dict()
    true, matched = ([names.get(c, f"cluster {c}") for c in rows[column]] for column in ("true_class", "matched_class"))
    title = f"{benchmark_name(arguments.benchmark)}, {arguments.run}"
    embedding(features, true, old, matched, arguments.out, title, seed=0)


if __name__ == "__main__":
    with reported():
        main()

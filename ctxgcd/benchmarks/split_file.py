"""Reading and writing of split files and their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256, read_rows, undamaged, write_text

SPLIT_COLUMNS = ("id", "path", "part", "role", "class_id", "class_name", "old")  # class_id: dense, 0..K-1
DTYPES = {
    "id": "int64",
    "path": "str",
    "part": "str",
    "role": "str",
    "class_id": "int64",
    "class_name": "str",
}
DTYPES |= {"old": "int64"}


def write_split(split: pd.DataFrame, csv_path: Path, hash_path: Path) -> None:
    """Write the split and the SHA-256 of its bytes, each atomically (temporary file, then rename)."""
    content = split.to_csv(index=False, lineterminator="\n")
    write_text(csv_path, content)
    write_text(hash_path, f"{hashlib.sha256(content.encode()).hexdigest()}\n")


def read_split(csv_path: Path) -> pd.DataFrame:
    """Read a split with its dtypes; text such as `NA` stays text. Raises UserError for a missing or damaged file."""
    if not csv_path.is_file():
        raise UserError(f"{csv_path} is missing; make it with `snakemake {csv_path}`")
    if (hash_file := csv_path.with_suffix(".sha256")).is_file():  # detects a file truncated between two lines
        with undamaged(csv_path):
            if hash_file.read_text(encoding="utf-8").strip() != file_sha256(csv_path):
                raise ValueError
    return read_rows(csv_path, usecols=SPLIT_COLUMNS, dtype=DTYPES, keep_default_na=False, lineterminator="\n")

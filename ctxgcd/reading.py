"""Reading people's tables and lists, as any editor or spreadsheet saves them; a fault is one sentence."""

from __future__ import annotations

import csv
import io
import posixpath
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError

SEPARATORS = ",;\t"
BLANK = ("", "nan")  # what programs write for a value that is missing, in lower case
TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class Table:
    """Rows of text cells, the line of each in the file as their index, and the name that a sentence gives them."""

    name: str
    rows: pd.DataFrame

    def column(self, *names: str) -> str:
        """Return the column that has the first of `names`, in letters of any case; UserError where none has."""
        found = [column for name in names for column in self.rows.columns if column.lower() == name]
        if found:
            return found[0]
        raise UserError(
            f"{self.name} has the columns {', '.join(self.rows.columns)}, expected {' or '.join(names)}; name it so"
        )

    def filled(self, *columns: str) -> Table:
        """Return the table of these columns alone; UserError for the first cell that is empty or NaN."""
        for column in columns:
            blank = self.rows[column].astype(str).str.lower().isin(BLANK)
            if blank.any():
                raise UserError(f"{self.name} line {blank.idxmax()}: {column} is empty; write it, or delete the line")
        return Table(self.name, self.rows[list(columns)])

    def once(self, key: str) -> Table:
        """Return the table with each `key` (an id, or a path in any spelling) on one row.

        Rows that are equal throughout count once; UserError for one key with two contents.
        """
        rows = self.rows.assign(**{key: self.rows[key].map(_plain)}) if key == "path" else self.rows
        rows = rows.drop_duplicates()
        if (twice := rows[rows[key].duplicated()]).size:
            image = twice[key].iloc[0]
            lines = rows.index[rows[key] == image]
            raise UserError(
                f"{self.name} says two things of the image {image}, on lines {lines[0]} and {lines[1]}; keep one"
            )
        return Table(self.name, rows)


def _plain(path: str) -> str:
    """A path as all spellings of it agree: ./a\\b.jpg is a/b.jpg."""
    return posixpath.normpath(path.replace("\\", "/"))


def as_table(given: Path | str | pd.DataFrame, name: str) -> Table:
    """Return a CSV file, or the rows of a DataFrame that `name` names, as a table."""
    if not isinstance(given, pd.DataFrame):
        return read_table(Path(given))
    if given.empty:
        raise UserError(f"{name} has no row; give one row an image")
    return Table(name, given.astype(str).fillna("").reset_index(drop=True))


def read_table(file: Path) -> Table:
    """Read a CSV whose columns are parted by comma, semicolon or tab; blanks around a cell are cut."""
    text = read_text(file)
    if not text.strip():
        raise UserError(f"{file} is empty; write a line of column names, then one line an image")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(SEPARATORS, key=text.strip().split("\n")[0].count))
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"{file} line {reader.line_num} is no line of a CSV ({error}); repair it") from error
    (_, head), *cells = rows
    if len(set(head)) < len(head):
        twice = Counter(head).most_common(1)[0][0]
        raise UserError(f"{file} has the column {twice!r} twice; keep one")
    if odd := next(((number, row) for number, row in cells if len(row) != len(head)), None):
        raise UserError(f"{file} line {odd[0]} has {len(odd[1])} columns, the first line {len(head)}; repair it")
    return Table(str(file), pd.DataFrame([row for _, row in cells], [number for number, _ in cells], head, dtype="str"))


def read_list(file: Path, *columns: str) -> list[str]:
    """Read one name a line, or the one of `columns` that a CSV has: each name once, in the file's order."""
    if file.suffix.lower() in TABLES:
        rows = read_table(file).rows
        found = [column for column in columns if column in rows.columns]
        if len(found) != 1:
            raise UserError(
                f"{file} has the columns {', '.join(rows.columns)}, expected just one of {' and '.join(columns)}"
            )
        lines = rows[found[0]].tolist()
    else:
        lines = [line.strip() for line in read_text(file).split("\n")]
    return list(dict.fromkeys(filter(None, lines)))


def read_text(file: Path) -> str:
    """Return UTF-8 text, with or without a byte order mark, its line ends as \\n; UserError for what is none."""
    try:
        return file.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check its name and folder") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); name a file that can") from error

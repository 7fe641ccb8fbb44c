"""Reading of users' tables and lists, in the formats that editors and spreadsheets save."""

from __future__ import annotations

import csv
import io
import posixpath
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError, shown

SEPARATORS = ",;\t"
SAID_BY_EXCEL = re.compile(r'"?sep=(.)"?\n', re.IGNORECASE)
BLANK = ("", "nan")  # missing values, in lower case
TABLES = (".csv", ".tsv")
SHOWN = 100  # names in one message

# Accepted names of a column, in any case; if a table has several, the first one is read.
PATH = ("path", "file", "filename", "image")
CLASS = ("class", "class_name", "label")
TRUE_CLASS = ("class_id", "class", "true_class", "class_name", "label")
GUESS = ("predicted", "prediction", "pred")
PREDICTED = (*GUESS, *CLASS)
NAME = "name"  # of the class, in what `ctxgcd discover` and `ctxgcd predict` write
COLUMNS = {*PATH, *TRUE_CLASS, *PREDICTED, "id", NAME, "old", "part", "role"}


@dataclass(frozen=True)
class Table:
    """Rows of text cells, and the name of the table in messages.

    The index holds the line number of each row in the file; the columns are in lower case.
    """

    name: str
    rows: pd.DataFrame

    def has(self, *names: str) -> list[str]:
        """Return those of `names` that are columns."""
        return [name for name in names if name in self.rows.columns]

    def column(self, *names: str) -> str:
        """Return the first of `names` that is a column. Raises UserError if none is."""
        if found := self.has(*names):
            return found[0]
        raise UserError(
            f"{self.name} has the columns {', '.join(self.rows.columns)}, but expected {' or '.join(names)}; rename "
            "the column"
        )

    def require_same_classes(self, column: str, *others: str) -> None:
        """Raise UserError unless `column` and each existing column of `others` name the same classes.

        The names must match one to one, in any Unicode form; rows with an empty value are ignored.
        """
        for other in self.has(*(name for name in others if name != column)):
            pairs = self.rows[[column, other]].drop_duplicates().map(nfc).drop_duplicates()
            pairs = pairs[~pairs.map(str.lower).isin(BLANK).any(axis="columns")]
            for key in (column, other):
                if (repeated := pairs[pairs[key].duplicated()]).size:
                    pair = pairs[pairs[key] == repeated[key].iloc[0]].iloc[:2]
                    (first, one), (second, two) = (
                        (line, " and ".join(map(repr, row))) for line, row in pair.iterrows()
                    )
                    raise UserError(
                        f"{self.name} has the columns {column} and {other}, which name different classes: line {first} "
                        f"has {one}, line {second} has {two}; keep the correct column and delete the other"
                    )

    def filled(self, *columns: str) -> Table:
        """Return the table with only these columns. Raises UserError for the first cell that is empty or NaN."""
        for column in columns:
            blank = self.rows[column].astype(str).str.lower().isin(BLANK)
            if blank.any():
                raise UserError(f"{self.name} line {blank.idxmax()}: {column} is empty; add a value or delete the line")
        return Table(self.name, self.rows[list(columns)])

    def plain(self) -> Table:
        """Return the table with normalized paths: ./a\\b.jpg becomes a/b.jpg."""
        return Table(self.name, self.rows.assign(path=self.rows["path"].map(_plain))) if self.has("path") else self

    def once(self, key: str) -> Table:
        """Return the table with one row for each `key` (a path or an id).

        Identical rows are merged. Raises UserError for two different rows with the same key.
        """
        rows = self.rows.drop_duplicates()
        if (twice := rows[rows[key].duplicated()]).size:
            image = twice[key].iloc[0]
            lines = rows.index[rows[key] == image]
            raise UserError(
                f"{self.name} has different rows for the image {image}, on lines {lines[0]} and {lines[1]}; keep one"
            )
        return Table(self.name, rows)


def _plain(path: str) -> str:
    return posixpath.normpath(path.replace("\\", "/")) if path else path


def as_table(given: Path | str | pd.DataFrame, name: str, first_line: str) -> Table:
    """Return a CSV file (see read_table) or a DataFrame, named `name` in messages, as a table."""
    if not isinstance(given, pd.DataFrame):
        return read_table(Path(given), first_line)
    if given.empty:
        raise UserError(f"{name} has no rows; give one row per image")
    head = _head(name, map(str, given.columns))
    return Table(name, given.astype(str).fillna("").set_axis(head, axis="columns").reset_index(drop=True))


def read_table(file: Path, first_line: str) -> Table:
    """Read a CSV separated by comma, semicolon or tab; spaces around a cell are stripped.

    The line `sep=;` and empty trailing columns, as written by Excel, are ignored. `first_line` describes the expected
    first line in the message for a file without column names.
    """
    text = read_text(file)
    skipped = 0
    if said := SAID_BY_EXCEL.match(text):
        text, skipped = text[said.end() :], 1
    if not text.strip():
        raise UserError(f"{file} is empty; write a line with column names, then one line per image")
    separator = said[1] if said else max(SEPARATORS, key=text.strip().split("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        lines = ([cell.strip() for cell in row] for row in reader)
        (number, first), *rows = [(reader.line_num + skipped, cells) for cells in lines if any(cells)]
    except csv.Error as error:
        raise UserError(
            f"{file} line {reader.line_num + skipped} is not valid CSV ({error}); correct the line"
        ) from error
    while not first[-1]:
        first.pop()
    if not COLUMNS.intersection(name.lower() for name in first):
        raise UserError(
            f"{file} line {number} is {separator.join(first)!r}, which has no known column name; the first line must "
            f"be {first_line}"
        )
    head = _head(str(file), first)
    width = len(head)
    if wrong := next(((number, row) for number, row in rows if len(row) < width or any(row[width:])), None):
        raise UserError(f"{file} line {wrong[0]} has {len(wrong[1])} columns, but expected {width}; correct the line")
    content = [row[:width] for _, row in rows]
    return Table(str(file), pd.DataFrame(content, [number for number, _ in rows], head, dtype="str"))


def _head(name: str, columns: Iterable[str]) -> list[str]:
    """Return column names in lower case. Raises UserError for a duplicate."""
    head = [column.lower() for column in columns]
    if len(set(head)) < len(head):
        raise UserError(f"{name} has the column {Counter(head).most_common(1)[0][0]!r} twice; keep one")
    return head


def read_list(file: Path, columns: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Read one name per line, or the column of a CSV named in `columns` (else in `others`): unique names, in order."""
    if file.suffix.lower() in TABLES:
        table = read_table(file, " or ".join(columns))
        found = table.has(*columns) or table.has(*others)
        if len(found) != 1:
            raise UserError(
                f"{file} has the columns {', '.join(table.rows.columns)}, but expected exactly one of "
                f"{' and '.join(columns)}"
            )
        lines = table.rows[found[0]].tolist()
    else:
        lines = [line.strip() for line in read_text(file).split("\n")]
    return list(dict.fromkeys(filter(None, lines)))


def read_text(file: Path) -> str:
    """Return UTF-8 text, with or without a byte order mark, with line breaks as \\n. Raises UserError otherwise."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check its name and folder") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); give a readable file") from error
    try:
        text = re.sub("\r\n?", "\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        what = "is not UTF-8 text; save it as UTF-8"
        if b"\0" in content and not content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            what = "is a binary file, such as an image or a workbook; give a CSV or a text file"
        raise UserError(f"{file} {what} (in Excel: save as CSV UTF-8)") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{file} line {line} contains a NUL byte; delete it")
    return text


# -- Unicode forms of names: macOS writes an accent as a separate character (NFD), most other systems do not (NFC) --


def nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def spelled(given: Iterable[str], known: Iterable[str], where: str) -> dict[str, str]:
    """Map each name to the known name that is equal, or else equal in NFC.

    Unknown names are left out. Raises UserError for a name that is not a known one (of `where`) but equals two of
    them in NFC.
    """
    exact = dict.fromkeys(known)
    found = {name: name for name in given if name in exact}
    if others := [name for name in given if name not in exact]:
        forms = _forms(exact)
        for name in others:
            meant = forms.get(nfc(name), [])
            if len(meant) > 1:
                raise UserError(
                    f"{name!r} matches {' and '.join(map(ascii, meant))} of {where}, which differ only in their "
                    "Unicode form; rename one of the two"
                )
            if meant:
                found[name] = meant[0]
    return found


def in_one_form(names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Map each class name to one spelling, and return a sentence on classes with several Unicode forms.

    The spelling is the name itself if it has only one form, else its NFC form.
    """
    several = several_forms(names)
    one = {name: name for name in names} | {name: whole for whole, forms in several.items() for name in forms}
    said = f"classes written in more than one Unicode form, which count as one class each: {listed(several)}"
    return one, [said] if several else []


def several_forms(names: Iterable[str]) -> dict[str, list[str]]:
    """Map each NFC form with several spellings to these spellings."""
    return {whole: forms for whole, forms in _forms(names).items() if len(forms) > 1}


def note_unicode_forms(paths: Iterable[str]) -> list[str]:
    """Return a sentence on images whose names differ only in their Unicode form, if there are any."""
    several = several_forms(paths)
    return [f"different images whose names differ only in their Unicode form: {listed(several)}"] if several else []


def _forms(names: Iterable[str]) -> dict[str, list[str]]:
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault(nfc(name), []).append(name)
    return forms


def listed(names: Iterable[str]) -> str:
    """Return up to SHOWN quoted names and the number of further ones; bytes that are not UTF-8 are escaped."""
    left = iter(names)
    text = ", ".join(f"'{shown(name)}'" for name in islice(left, SHOWN))
    return f"{text} and {more:,} more" if (more := sum(1 for _ in left)) else text

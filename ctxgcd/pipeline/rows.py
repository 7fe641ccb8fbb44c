"""The grammar of a row's name: METHOD[-VARIANT][+key=value...][-without-x|-zero], and +WORD for a modifier."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import yaml

from ctxgcd.catalogue.entries import METHODS, MODIFIERS, Entry
from ctxgcd.config import require
from ctxgcd.errors import UserError

# What a row can set, in addition to the values that its method reads.
ROW_KEYS = ("K", "settings", "backbone")

ROW = re.compile(
    r"(?P<method>[a-z][a-z0-9_]*)(?:-(?P<variant>[a-z]+?))??(?P<changed>(?:\+\w+(?:=[\w.-]+?)?)*)"
    r"(?P<ablated>-without-[a-z]|-zero)?"
)


class RowName(NamedTuple):
    """A parsed row name.

    Attributes:
        overrides: values set by the row, by key.
        terms: the computed loss terms, among those that rows can leave out.
        zeroed: the computed terms with weight 0.
        modifiers: names of catalogue.MODIFIERS, in order.
    """

    method: str
    variant: str | None
    overrides: dict[str, Any]
    terms: list[str]
    zeroed: list[str]
    modifiers: list[str] = []  # noqa: RUF012

    @property
    def entry(self) -> Entry:
        return METHODS[self.method]

    @property
    def trains(self) -> bool:
        return self.entry.trains


def parse_row(row: str) -> RowName:
    """Parse a row's name. Raises UserError for an unknown method, variant or modifier, or invalid syntax."""
    match = ROW.fullmatch(row)
    method = match["method"] if match else row.split("-")[0].split("+")[0]
    if method not in METHODS:
        refuse(method, METHODS, f"row '{row}'", "method")
    entry = METHODS[method]
    endings = "|".join([*(f"-without-{letter}" for letter in entry.ablated), *["-zero"] * bool(entry.ablated)])
    form = f"METHOD{'[-VARIANT]' * bool(entry.variants)}[+key=value...]{f'[{endings}]' * bool(endings)}"
    if match is None:
        raise UserError(f"row '{row}' is invalid; write {form}")
    variant, ablated = match["variant"], match["ablated"] or ""
    if entry.variants and not variant:
        raise UserError(f"row '{row}' names no variant; write {', '.join(f'{method}-{one}' for one in entry.variants)}")
    if entry.variants and variant not in entry.variants:
        refuse(variant, entry.variants, f"row '{row}'", f"variant of {method}")
    if (variant or ablated) and not entry.variants and not entry.ablated:
        raise UserError(f"row '{row}': {method} has neither variants nor terms to leave out; write '{method}'")
    if (variant and not entry.variants) or ablated not in ("", *endings.split("|")):
        raise UserError(f"row '{row}' is invalid; write {form}")
    words = match["changed"].split("+")[1:]
    modifiers = [word for word in words if "=" not in word]
    for word in modifiers:
        if word in (*entry.reads, *ROW_KEYS) or not MODIFIERS:
            raise UserError(f"row '{row}' is invalid: '+{word}' has no value; write {form}")
        refuse(word, MODIFIERS, f"row '{row}'", "modifier")
    pairs = [word.split("=", 1) for word in words if "=" in word]
    overrides = {key: _value(text) for key, text in pairs}
    if len(overrides) < len(pairs) or len(set(modifiers)) < len(modifiers):
        raise UserError(f"row '{row}' sets a parameter twice; set each parameter once")
    if not entry.trains and "settings" in overrides:
        raise UserError(f"row '{row}': {method} reads no settings; write '{method}'")
    left_out = entry.ablated.get(ablated.removeprefix("-without-"))
    terms = [term for term in entry.ablated.values() if term != left_out]
    zeroed = terms if ablated == "-zero" else []
    for term, weight in entry.weights.items():
        if weight in overrides and term in (left_out, *zeroed):
            raise UserError(f"row '{row}' sets {weight}, but {ablated} already changes {term}; remove one of them")
    return RowName(method, variant, overrides, terms, zeroed, modifiers)


def _value(text: str) -> Any:
    """Return a number if the text is one (also 1e-05, a string in YAML 1.1), else a string, true or false.

    Other YAML numbers stay strings and are refused later: 060 would be 48 in YAML.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        value = yaml.safe_load(text)
        return value if isinstance(value, bool) else text


def refuse(name: str, valid: Iterable[str], where: str, kind: str) -> None:
    """Raise UserError, with the valid names, unless `name` is valid."""
    try:
        require(name, valid, where, kind)
    except ValueError as error:
        raise UserError(str(error)) from None

"""The digest of a Python module's content, and the modules that it imports. Uses only the standard library."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

NOT_CONTENT = {"ctx", "kind", "type_comment", "type_ignores"}  # fields of nodes
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # fields with statements


def content_digest(source: str) -> str:
    """Return a digest of sixteen hex digits that ignores comments, docstrings, layout and code for type checking.

    It is the same in every supported Python version: the syntax tree is written with the names of its nodes and fields,
    without empty fields, because newer versions add fields that are empty for older code. Raises SyntaxError.
    """
    return digest_of(json.dumps(_plain(parsed(source))))


@lru_cache(maxsize=1)  # the digest of a module and its imports are asked for one after the other
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module, which callers must not change. Raises SyntaxError."""
    return ast.parse(source)


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each module that the running code of a tree imports, with the names imported from it.

    No names are yielded for `import module`.

    package: the dotted name of the package of the module, used to resolve relative imports.
    """
    for field in BLOCKS:
        for node in _running(getattr(tree, field, ())):
            if isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")
                above = parents[: len(parents) - node.level + 1] if node.level else []
                yield ".".join([*above, *filter(None, [node.module])]), [alias.name for alias in node.names]
            else:
                yield from imported(node, package)


def digest_of(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _running(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements that run: no docstrings and other bare strings, and no blocks under `if TYPE_CHECKING`."""
    for node in statements:
        if isinstance(node, ast.If):
            name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
            if name == "TYPE_CHECKING":
                yield from _running(node.orelse)
                continue
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        yield node


def _plain(value: Any) -> Any:
    """Return the running code of a syntax tree as lists and strings with the same JSON in every Python version."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in _running(value)]
    if isinstance(value, ast.JoinedStr):
        return ["JoinedStr", list(_pieces(value))]
    if not isinstance(value, ast.AST):
        return [type(value).__name__, repr(value)]
    content: list[Any] = [type(value).__name__]
    for name, found in ast.iter_fields(value):
        if found is not None and name not in NOT_CONTENT and (plain := _plain(found)) != []:
            content.append([name, plain])
    return content


def _pieces(joined: ast.JoinedStr) -> Iterator[Any]:
    """Yield the parts of an f-string with adjacent texts joined, because Python versions divide them differently."""
    text = ""
    for part in joined.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        else:
            yield from [text] * bool(text)
            yield _plain(part)
            text = ""
    yield from [text] * bool(text)

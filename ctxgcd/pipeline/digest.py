"""The digest of a Python module's content, and the modules that it imports. Uses only the standard library."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

NOT_CONTENT = {"ctx", "kind", "type_comment", "type_ignores"}  # fields of nodes


def content_digest(source: str) -> str:
    """Return a digest of sixteen hex digits that ignores comments, docstrings, layout and code for type checking.

    It is the same in every supported Python version: the syntax tree is written with the names of its nodes and fields,
    without empty fields, because newer versions add fields that are empty for older code. Raises SyntaxError.
    """
    return digest_of(json.dumps(_plain(running(source))))


@lru_cache(maxsize=1)  # the digest of a module and its imports are asked for one after the other
def running(source: str) -> ast.Module:
    """Return the syntax tree of the code that runs, which callers must not change. Raises SyntaxError."""
    return cast(ast.Module, _Running().visit(ast.parse(source)))


def imported(tree: ast.Module, package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each module that a tree imports, with the names imported from it (none for `import module`).

    package: the dotted name of the package of the module, used to resolve relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            yield ".".join([*above, *filter(None, [node.module])]), [alias.name for alias in node.names]


def digest_of(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


class _Running(ast.NodeTransformer):
    """Removes docstrings, other bare strings, and blocks under `if TYPE_CHECKING` or `if typing.TYPE_CHECKING`."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        return node.orelse if name == "TYPE_CHECKING" else node


def _plain(value: Any) -> Any:
    """Return a syntax tree as lists and strings with the same JSON in every Python version."""
    if isinstance(value, ast.JoinedStr):
        return ["JoinedStr", list(_pieces(value))]
    if isinstance(value, ast.AST):
        fields = ((name, found) for name, found in ast.iter_fields(value) if name not in NOT_CONTENT)
        return [type(value).__name__, *([name, _plain(found)] for name, found in fields if found not in (None, []))]
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str) else [type(value).__name__, repr(value)]


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

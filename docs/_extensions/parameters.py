"""All keys of params.yaml: type, default, committed value and description.

A description is the comment `#:` beside the field in ctxgcd/config.py or ctxgcd/catalogue/. The build fails
if a field has none. One file for each section is written to docs/_published/ and included in docs/parameters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.pycode import ModuleAnalyzer

from ctxgcd import config
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.catalogue.sections import Closed

HERE = Path(__file__).parents[1]
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}


def description(model: type[BaseModel], field: str) -> str:
    """Return the comment of a field. Raises LookupError if there is none."""
    for cls in model.__mro__:
        if issubclass(cls, Closed):
            comments = ModuleAnalyzer.for_module(cls.__module__).find_attr_docs()
            if (cls.__name__, field) in comments:
                return " ".join(comments[cls.__name__, field]).strip()
    raise LookupError(f"{model.__module__}.{model.__name__}.{field} has no description; write a comment #: beside it")


def kind(annotation: Any) -> str:
    """Return a readable type: `int`, `list of float`, `"linear" or "cosine"`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(kind(one) for one in arguments)
    if origin is list:
        return f"list of {kind(arguments[0])}"
    if origin is dict or issubclass(annotation, BaseModel):
        return "section"
    return str(annotation.__name__)


def bounded(field: FieldInfo) -> str:
    """Return the type of a field with its bounds, as `float, > 0`."""
    limits = [
        text.format(getattr(one, at)) for one in field.metadata for at, text in BOUNDS.items() if hasattr(one, at)
    ]
    return ", ".join([kind(field.annotation), *limits])


def table(model: type[BaseModel], values: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return a table of the fields: key, type, default, value in each named section of `values`, description."""
    values = values or {}
    lines = [["Key", "Type", "Default", *values, "Description"]]
    lines += [["---"] * len(lines[0])]
    for name, field in model.model_fields.items():
        key = field.alias or name
        default = "" if field.is_required() else _shown(field.default)
        text = description(model, name)
        lines.append([f"`{key}`", bounded(field), default, *(_shown(of[key]) for of in values.values()), text])
    return _markdown(lines)


def _shown(value: Any) -> str:
    """Format a value as in params.yaml; members of a list or section are separate, so that lines can break."""
    members = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        members = [f"{key}: {_text(member)}" for key, member in value.items()]
    return ", ".join(f"`{_text(member)}`" for member in members if member != "") or "empty"


def _text(value: Any) -> str:
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return value if isinstance(value, str) else dumped.removesuffix("...\n").strip()


def _markdown(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sections(params: dict[str, Any]) -> dict[str, str]:
    """Return the text of each section by its name."""
    found: dict[str, str] = {}
    for name, model in {
        "split": config.Split,
        "estimate": config.Estimate,
        "sensitivity": config.Sensitivity,
        "all_tables": config.AllTables,
        "rows": config.Rows,
    }.items():
        found[name] = table(model, {"Value": params[name]})
    found["seeds_of"] = table(config.Seeds, params["seeds_of"])
    methods = {name: table(of.values, {"Value": params["methods"][name]}) for name, of in METHODS.items()}
    found["methods"] = "\n".join(f"### methods.{name}\n\n{text}" for name, text in methods.items())
    found["backbones"] = table(config.Backbone, params["backbones"])
    found["protocols"] = table(config.Protocol, params["protocols"])
    found["official"] = table(config.Official)
    found["own"] = table(config.Own)
    found["images"] = table(config.Images)
    found |= {"benchmarks": _benchmarks(params["benchmarks"]), "settings": _settings(params["settings"])}
    return found | {"top": _top(params, found)}


def _top(params: Mapping[str, Any], below: Mapping[str, str]) -> str:
    lines = [["Key", "Type", "Value", "Description"], ["---"] * 4]
    for name, field in config.Params.model_fields.items():
        key = field.alias or name
        value = f"[below](#{key})" if key in below else _shown(params[key])
        lines.append([f"`{key}`", bounded(field), value, description(config.Params, name)])
    return _markdown(lines)


def _benchmarks(entries: Mapping[str, Mapping[str, Any]]) -> str:
    keys = list(config.Official.model_fields)
    lines = [["Benchmark", *keys], ["---"] * (len(keys) + 1)]
    lines += [[f"`{name}`", *(_shown(entry.get(key, "")) for key in keys)] for name, entry in entries.items()]
    return _markdown(lines)


def _settings(entries: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    lines = [["Settings", "Method", "Key", "Value"], ["---"] * 4]
    for name, methods in entries.items():
        lines += [
            [f"`{name}`", f"`{method}`", f"`{key}`", _shown(value)]
            for method, values in methods.items()
            for key, value in values.items()
        ] or [[f"`{name}`", "", "", "no differences"]]
    return _markdown(lines)


def write(*_: Any) -> None:
    """Write docs/_published/parameters.SECTION.md."""
    folder = HERE / "_published"
    folder.mkdir(exist_ok=True)
    params = config.read(HERE.parent / "params.yaml").model_dump(by_alias=True)
    for name, text in sections(params).items():
        (folder / f"parameters.{name}.md").write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

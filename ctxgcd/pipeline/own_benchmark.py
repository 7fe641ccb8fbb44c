"""Adds a folder of images to params.yaml as a benchmark, with training values that fit its number of images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ctxgcd.benchmarks.readers.own_images import OwnImages
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params, parse, read
from ctxgcd.errors import UserError
from ctxgcd.names import PARTS
from ctxgcd.pipeline.few_images import fitted
from ctxgcd.pipeline.resolve import protocol_of, values_of
from ctxgcd.pipeline.rows import refuse
from ctxgcd.utils.files import require_writable, write_text


def add_benchmark(params: Path, name: str, folder: Path, labelled: str, listing: str, like: str) -> dict[str, Any]:
    """Add benchmarks.NAME and tables.main_NAME to params.yaml; see api.benchmark. Other lines stay as they are."""
    known = read(params)
    require_writable(params)
    table = f"main_{name}"
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise UserError(f"the name {name!r} has other characters than letters, digits and _; choose another name")
    for kind, place in (("benchmarks", name), ("tables", table)):
        if place in getattr(known, kind):
            raise UserError(f"{params} has {kind}.{place} already; choose another name, or delete that section")
    if like not in known.benchmarks:
        refuse(like, known.benchmarks, "--like", "benchmark")
    path = (
        folder if params.resolve().parent == Path.cwd() else folder.absolute()
    )  # the workflow runs beside params.yaml
    listing, labelled = (_found(folder, file) for file in (listing, labelled))
    section: dict[str, Any] = {"reader": "folder", "path": str(path), "listing": listing, "labelled": labelled}
    reader = reader_of(section)
    assert isinstance(reader, OwnImages)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that contains one folder of images for each class")
    manifest = reader.manifest(folder)
    if not reader.list_files(folder)[-1].is_file():
        first = ", ".join(sorted(set(manifest["class_name"]))[:2])
        raise UserError(
            f"{reader.list_files(folder)[-1]} is missing; write the classes that have labels into it, one per line "
            f"(for example {first}), or give another file with --labelled"
        )
    classes, _ = reader.divide(folder, manifest, name)
    counts = {part: int((manifest["part"] == part).sum()) for part in PARTS}
    section |= {"classes": classes.num_classes, "images": counts, "K": True}
    adapted, said = _adapted(known, like, counts["train"])
    section |= adapted
    text = params.read_bytes().decode()
    text = _extended(text, "benchmarks", {name: section}, params)
    text = _extended(text, "tables", {table: [name]}, params)
    parse(yaml.safe_load(text), params.name)
    write_text(params, text)
    return {"section": section, "table": table, "old": len(classes.old), "adapted": said}


def _found(folder: Path, file: str) -> str:
    """Return a file's name as a section has it: relative to the folder, or absolute if it is another file."""
    return file if not file or (folder / file).is_file() or not Path(file).is_file() else str(Path(file).absolute())


def _adapted(params: Params, like: str, images: int) -> tuple[dict[str, Any], list[str]]:
    """Return the training values of another benchmark for this number of images, and sentences on reduced values.

    The number of steps stays, so the epochs and the warm-ups change.
    """
    entry, protocol = params.benchmarks[like], protocol_of(params, like)
    if entry.images == "any":
        raise UserError(f"--like {like}: the number of its images is not in params.yaml; give another benchmark")
    steps = protocol.epochs * (entry.images.train // protocol.batch_size)
    fitting = [method for method in params.methods if not METHODS[method].whole]  # the others have epochs of their own
    found = {method: values_of(params, method, "default", like) for method in fitting}
    values = {key: value for section in found.values() for key, value in section.items()} | protocol.model_dump()
    made, said = fitted(values | {"steps": steps}, images)
    changed = {key: value for key, value in made.items() if value != values[key]}  # of all sections, by unique names

    def of(section: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        return {**own, **{key: value for key, value in changed.items() if key in section}}

    methods = {method: of(section, entry.methods.get(method, {})) for method, section in found.items()}
    return {
        "protocol": entry.protocol,
        "overrides": of(protocol.model_dump(), entry.overrides),
        "methods": {method: section for method, section in methods.items() if section},
        "settings": entry.settings,
    }, said


def _extended(text: str, section: str, entries: Mapping[str, Any], params: Path) -> str:
    """Return a YAML text with entries appended to a top-level section, without changing any other line."""
    lines = text.split("\n")
    end = "\r" * lines[0].endswith("\r")
    start = next((place for place, line in enumerate(lines) if re.match(rf"{section}:\s*(#.*)?$", line)), None)
    after = lines[start + 1 :] if start is not None else []
    size = next((place for place, line in enumerate(after) if re.match(r"[^\s#]", line)), len(after))
    inside = [place for place, line in enumerate(after[:size]) if line.startswith(" ") and line.strip()]
    if start is None or not inside:
        raise UserError(
            f"{params}: the section {section} does not start with a line '{section}:' and indented lines below it; "
            "write it so, or add the benchmark by hand as in docs/own_images.md"
        )
    indent = " " * min(len(after[place]) - len(after[place].lstrip()) for place in inside)
    place = start + 1 + inside[-1] + 1
    return "\n".join([*lines[:place], *(indent + line + end for line in _lines(entries)), *lines[place:]])


def _lines(entries: Mapping[str, Any]) -> list[str]:
    """Return entries as lines of YAML: one line a key, and one line a key of `methods`."""

    def flow(value: Any) -> str:
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()

    lines = []
    for name, value in entries.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {_scalar(flow(value))}")
            continue
        lines.append(f"{name}:")
        for key, content in value.items():
            if key == "methods" and content:
                lines.append("  methods:")
                lines += [f"    {method}: {flow(of)}" for method, of in content.items()]
            else:
                lines.append(f"  {key}: {_scalar(flow(content))}")
    return lines


def _scalar(text: str) -> str:
    return text.removesuffix("\n...")  # the end of a document, which safe_dump adds after a plain scalar

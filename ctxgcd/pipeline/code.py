"""Which code computes the result of a step: the modules that its script reaches by imports, by their content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ctxgcd.benchmarks.readers.registry import READER_CODE
from ctxgcd.catalogue.entries import METHODS, MODIFIERS
from ctxgcd.errors import UserError
from ctxgcd.pipeline.digest import content_digest, digest_of, imported, running
from ctxgcd.pipeline.equality import oldest

if TYPE_CHECKING:
    from ctxgcd.pipeline.rows import RowName

ROOT = Path(__file__).parents[2]  # of the checkout, or the folder that the package is installed in

# Modules that cannot change a number, and so are part of no step's code. Nothing is reached through them either.
WITHOUT_NUMBERS = {
    "ctxgcd": "the version",
    "ctxgcd.errors": "sentences for users",
    "ctxgcd.pipeline.failed_jobs": "the last sentence of a job that failed",
    "ctxgcd.utils.reporting": "how a command ends",
    "ctxgcd.utils.signals": "signals",
    "ctxgcd.utils.progress": "progress lines",
    "ctxgcd.utils.terminal": "progress bars",
    "ctxgcd.training.device_locks": "locks of devices",
    "ctxgcd.training.provenance": "provenance: versions, device, commit, memory",
    "ctxgcd.pipeline.run_cache": "the run cache, which copies files",
    "ctxgcd.training.tensorboard_files": "TensorBoard files",
    "ctxgcd.pipeline.paths": "where files lie",
    "ctxgcd.pipeline.code": "which code a step has",
    "ctxgcd.pipeline.digest": "the digest of a module",
    "ctxgcd.pipeline.equality": "which digests are declared equal",
    "ctxgcd.pipeline.identity": "names of runs; the K that a file holds passes as it is",
    "ctxgcd.pipeline.possible": "refuses a run or lets it pass",
    "ctxgcd.methods.hook_checks": "refuses what a hook returns or lets it pass",
    "ctxgcd.catalogue.entries": "which method is which class; the class is code, the values are parameters",
    "ctxgcd.config": "what params.yaml may hold; the values are parameters",
    "ctxgcd.catalogue.sections": "refuses a value or lets it pass",
    "ctxgcd.benchmarks.readers.registry": "which reader is which module; the module is code",
    "ctxgcd.benchmarks.places": "where data lies",
    "ctxgcd.models.pretrained": "which file of weights is read; its hash is a parameter, that of a package is code",
    "ctxgcd.benchmarks.fetching.download": "fetches a file, which is checked by its hash",
}

# Files that a module reads. Class lists are no code: a split depends on its own one alone.
DATA = {
    "ctxgcd.tables.published": ("tables/*.csv",),
    "ctxgcd.tables.render": ("tables/templates/*",),
    "ctxgcd.report.page": ("report/templates/*",),
    "ctxgcd.discover.presets": ("discover/presets.yaml",),
}


WEIGHTS, FEATURES = "prepare_weights", "extract_features"
SCRIPTS = [
    *(WEIGHTS, FEATURES, "estimate_k", "score_run", "find_duplicates"),
    *("make_table", "summarize_scores", "audit_published", "draw_curves", "draw_sensitivity", "draw_embedding"),
]


@dataclass(frozen=True)
class Code:
    """The code of a step.

    modules: digest of each module by its name.
    """

    modules: Mapping[str, str]

    @property
    def hash(self) -> str:
        """Sixteen hex digits that tell it from any other code, but for declared equality (pipeline/equality.py)."""
        return hash_of(self.modules.values())

    @property
    def true_hash(self) -> str:
        """The same without declared equality."""
        return digest_of(json.dumps(sorted(set(self.modules.values()))))

    def __or__(self, other: Code) -> Code:
        return Code({**self.modules, **other.modules})


def hash_of(digests: Iterable[str]) -> str:
    """The hash of code whose modules have these digests: that of the oldest ones that are declared equal to them."""
    return digest_of(json.dumps(sorted(set().union(*(oldest(digest) for digest in digests)))))


def refuse_changed(planned: str, now: Code) -> None:
    """Raise UserError where a job's code is no longer that which its call planned: its result has the latter's name."""
    if now.hash != planned:
        raise UserError("the code changed after this call planned the job; run the same command again")


# -- steps -------------------------------------------------------------------------------------------------


def steps() -> dict[str, tuple[str, ...]]:
    """The modules that each step starts from, by its name."""
    found: dict[str, tuple[str, ...]] = {name: (_script(name),) for name in SCRIPTS}
    for reader in READER_CODE:
        found[f"manifest of {reader}"] = _manifest(reader)
        found[f"split of {reader}"] = _split(reader)
        found[f"pack of {reader}"] = _pack(reader)
    return found | {f"training of {method}": _training(method) for method in METHODS}


def manifest(reader: str) -> Code:
    """Of the list of images, with the own reader alone."""
    return reached(*_manifest(reader))


def split(reader: str) -> Code:
    """Of the split; of the reader counts the order of its images."""
    return reached(*_split(reader))


def pack(reader: str) -> Code:
    """Of the image store; of the reader counts what opens the images."""
    return reached(*_pack(reader))


def training(method: str, modifiers: Sequence[str] = ()) -> Code:
    """Of a method's training, from its inputs on."""
    return reached(*_training(method, modifiers))


def script(name: str) -> Code:
    """Of a step that no method and no reader changes: one of SCRIPTS."""
    return reached(_script(name))


def run(reader: str, method: str, modifiers: Sequence[str] = ()) -> Code:
    """Of a run: packing, weights, features and training. List and split of the images enter by the split's hash."""
    return pack(reader) | features() | training(method, modifiers)


def features() -> Code:
    """Of kept features, the image store aside."""
    return script(WEIGHTS) | script(FEATURES)


def of_row(reader: str, row: RowName) -> Code:
    """Of the runs of a row."""
    return run(reader, row.method, row.modifiers)


def _manifest(reader: str) -> tuple[str, ...]:
    return _script("list_images"), READER_CODE[reader].reader


def _split(reader: str) -> tuple[str, ...]:
    return _script("split_images"), READER_CODE[reader].reader


def _pack(reader: str) -> tuple[str, ...]:
    return _script("pack_images"), READER_CODE[reader].images


def _training(method: str, modifiers: Sequence[str] = ()) -> tuple[str, ...]:
    return _script("train_run"), *classes_of(method, modifiers)


def classes_of(method: str, modifiers: Sequence[str] = ()) -> tuple[str, ...]:
    """A method's class and its modifiers, each as `module:name`."""
    classes = [METHODS[method].cls, *(MODIFIERS[word].cls for word in modifiers)]
    return tuple(":".join(dotted.rsplit(".", 1)) for dotted in classes)


def _script(name: str) -> str:
    return f"workflow.scripts.{name}"


# -- modules -----------------------------------------------------------------------------------------------


def reached(*roots: str, root: Path = ROOT) -> Code:
    """The modules that these reach by imports, themselves included, lazy imports too, those for types alone not.

    roots: modules, or `module:name` where an entry says which of a module's classes or functions is meant; the name
    counts too.
    """
    found = {root: digest_of(root.partition(":")[2]) for root in roots if ":" in root}
    waiting = [root.partition(":")[0] for root in roots]
    while waiting:
        if (name := waiting.pop()) not in found and name not in WITHOUT_NUMBERS:
            found[name] = digest(name, root)
            waiting += imports(name, root)
    return Code(dict(sorted(found.items())))


@cache
def imports(name: str, root: Path = ROOT) -> frozenset[str]:
    """The modules of this package that a module imports when it runs."""
    found: set[str] = set()
    file = file_of(name, root)
    room = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for module, names in imported(running(file.read_text(encoding="utf-8")), room):
        modules = {f"{module}.{one}" for one in names if _is_module(f"{module}.{one}", root)}
        found |= modules if names and len(modules) == len(names) else {module, *modules}
    return frozenset(one for one in found if one.partition(".")[0] == "ctxgcd")


@cache
def digest(name: str, root: Path = ROOT) -> str:
    """The digest of a module's content, and of the data files that it reads."""
    data = [path for pattern in DATA.get(name, ()) for path in sorted((root / "ctxgcd").glob(pattern))]
    content = content_digest(file_of(name, root).read_text(encoding="utf-8"))
    return digest_of(json.dumps([content, *(digest_of(path.read_bytes()) for path in data)])) if data else content


def modules(root: Path = ROOT) -> dict[str, str]:
    """The digests of all modules and scripts of a checkout that can change a number, by their names."""
    files = [*(root / "ctxgcd").rglob("*.py"), *(root / "workflow" / "scripts").glob("*.py")]
    names = (file.relative_to(root).with_suffix("").as_posix().replace("/", ".") for file in sorted(files))
    return {name: digest(name, root) for name in names if name not in WITHOUT_NUMBERS and not name.endswith("__init__")}


def file_of(name: str, root: Path) -> Path:
    """The file of a module or script by its dotted name. Raises UserError where there is none."""
    if found := _found(name, root):
        return found
    raise UserError(
        f"the module {name} is not in {root}; put it there, or correct its name in ctxgcd/catalogue/entries.py"
    )


def _found(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    return next((file for file in (path.with_name(f"{path.name}.py"), path / "__init__.py") if file.is_file()), None)


def _is_module(name: str, root: Path) -> bool:
    return name.startswith("ctxgcd.") and _found(name, root) is not None

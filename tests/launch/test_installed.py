"""The components as they are installed, from a wheel and editable, on both TorchX lines: by a real pip, without network."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.lines import BOTH, ROOT, environment, interpreter
from tests.util import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OURS = ["ft.ddp", "ft.diloco", "ft.hsdp", "ft.lighthouse"]
TORCHX = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"
PARTS = ("torchft_x", "components", "scripts", "components.py", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Place:
    """An environment with torchft_x in it, and a directory of its user, which isn't the clone."""

    python: str
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        # -I: neither the current directory nor PYTHONPATH, as in TorchX's own console script
        return subprocess.run(
            [self.python, "-I", *words],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=scaled(120),
            check=False,
        )

    def torchx(self, *words: str) -> str:
        done = self.run("-c", TORCHX, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=[(way, line) for way in ("wheel", "editable") for line in BOTH], ids="-".join)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    way, line = request.param
    base = interpreter(line)
    top = tmp_path_factory.mktemp(f"{way}-{line}")
    (top / "clone").mkdir()
    for part in PARTS:  # a copy: pip leaves traces beside what it builds
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, top / "clone" / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, top / "clone")
    subprocess.run([base, "-m", "venv", "--without-pip", str(top / "venv")], check=True, timeout=scaled(120))
    python = str(top / "venv" / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    borrowed, site = (subprocess.check_output([p, "-c", where], text=True).strip() for p in (base, python))
    Path(site, "borrowed.pth").write_text(borrowed + "\n")  # torch, torchx, setuptools, ...
    install = [
        base,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-qq",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    ]
    words = ["--editable", str(top / "clone")] if way == "editable" else [str(top / "clone")]
    done = subprocess.run(
        [*install, *words], env=environment(), capture_output=True, text=True, timeout=scaled(240), check=False
    )
    assert done.returncode == 0, done.stderr
    if way == "wheel":
        shutil.rmtree(top / "clone")
    folder = top / "user"
    folder.mkdir()
    (folder / "train.py").write_text("")
    yield Place(python, folder)
    shutil.rmtree(top)


def names(listing: str) -> list[str]:
    return re.findall(r"^ *\d+\. (\S+)", listing, re.MULTILINE)


def test_what_is_listed(place: Place) -> None:
    listed = names(place.torchx("builtins"))
    assert [name for name in listed if name.startswith("ft")] == OURS
    own = "import torchx.specs.finder as f; f._load_custom_components = lambda *_: []; "
    plain = names(place.run("-c", own + TORCHX, "builtins").stdout)  # as if nobody had registered any
    assert "dist.ddp" in plain
    assert sorted([*plain, *OURS]) == sorted(listed)


@pytest.mark.parametrize("name", ["ddp", "hsdp", "diloco"])
def test_a_job_of_a_users_script(place: Place, name: str) -> None:
    out = place.torchx("run", "-s", "local_cwd", "--dryrun", f"ft.{name}", "--script", "train.py", "--", "--steps=3")
    assert f"'name': '{name}'" in out
    assert "'--steps=3'" in out


def test_the_lighthouse(place: Place) -> None:
    assert "'lighthouse'" in place.torchx("run", "-s", "local_cwd", "--dryrun", "ft.lighthouse", "--port", "0")


def test_without_the_clone_there_is_no_default_script(place: Place) -> None:
    done = place.run("-c", TORCHX, "run", "-s", "local_cwd", "ft.hsdp")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert re.fullmatch(r"torchft_x: The default script scripts/train_hsdp\.py, .*; name yours with --script\.", last)
    assert "Traceback" not in done.stderr


def test_the_package_of_components(place: Place) -> None:
    code = "import torchft_x.components as c; print(c.ddp('--a', script='train.py', name='mine').name)"
    done = place.run("-c", code)
    assert done.stdout == "mine\n", done.stderr
    done = place.run("-c", "from torchft_x.components.hsdp import hsdp; print(hsdp(script='train.py').name)")
    assert done.stdout == "hsdp\n", done.stderr

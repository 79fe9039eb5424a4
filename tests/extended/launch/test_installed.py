"""The components as they are installed, from a wheel and editable, on both TorchX lines: by a real pip, without network."""

from __future__ import annotations

import re

import pytest

from tests.extended.matrix.places import Place, Workshop
from tests.unit.launch.lines import BOTH

pytestmark = [pytest.mark.timeout(300)]

OURS = ["ft.ddp", "ft.diloco", "ft.hsdp", "ft.lighthouse", "ft.titan"]
TORCHX = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"


@pytest.fixture(scope="module", params=[(way, line) for way in ("wheel", "editable") for line in BOTH], ids="-".join)
def place(request: pytest.FixtureRequest, workshop: Workshop) -> Place:
    """The matrix's, with a user's script in the user's directory."""
    way, line = request.param
    made = workshop.place(line, way)
    (made.folder / "train.py").write_text("")
    return made


def said(place: Place, *words: str) -> str:
    """By the command, on both streams."""
    done = place.torchx(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def names(listing: str) -> list[str]:
    return re.findall(r"^ *\d+\. (\S+)", listing, re.MULTILINE)


def test_what_is_listed(place: Place) -> None:
    listed = names(said(place, "builtins"))
    assert [name for name in listed if name.startswith("ft")] == OURS
    own = "import torchx.specs.finder as f; f._load_custom_components = lambda *_: []; "
    plain = names(place.run_python("-I", "-c", own + TORCHX, "builtins").stdout)  # as if nobody had registered any
    assert "dist.ddp" in plain
    assert sorted([*plain, *OURS]) == sorted(listed)


@pytest.mark.parametrize("name", ["ddp", "hsdp", "diloco"])
def test_a_job_of_a_users_script(place: Place, name: str) -> None:
    out = said(place, "run", "-s", "local_cwd", "--dryrun", f"ft.{name}", "--script", "train.py", "--", "--steps=3")
    assert f"'name': '{name}'" in out
    assert "'--steps=3'" in out


def test_the_lighthouse(place: Place) -> None:
    assert "'lighthouse'" in said(place, "run", "-s", "local_cwd", "--dryrun", "ft.lighthouse", "--port", "0")


def test_without_the_clone_there_is_no_default_script(place: Place) -> None:
    done = place.torchx("run", "-s", "local_cwd", "ft.hsdp")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert re.fullmatch(r"torchft_x: The default script scripts/train_hsdp\.py, .*; name yours with --script\.", last)
    assert "Traceback" not in done.stderr


def test_the_package_of_components(place: Place) -> None:
    code = "import torchft_x.components as c; print(c.ddp('--a', script='train.py', name='mine').name)"
    done = place.run_python("-I", "-c", code)
    assert done.stdout == "mine\n", done.stderr
    done = place.run_python(
        "-I", "-c", "from torchft_x.components.hsdp import hsdp; print(hsdp(script='train.py').name)"
    )
    assert done.stdout == "hsdp\n", done.stderr

"""The environments themselves: what is in them, and that nothing else is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.extended.matrix.places import WAYS, Workshop, borrowed, make_environment, without_network
from tests.unit.launch.lines import environment
from tests.util import scaled

FIND = "import importlib.metadata as m; print([d.name for d in m.distributions() if 'torchft' in d.name])"


def test_what_is_borrowed() -> None:
    ours = [
        "torchft_x",
        "torchft_x-0.1.0.dist-info",
        "__editable___torchft_x_0_1_0_finder.py",
        "__editable__.other.pth",
    ]
    others = ["torch", "torchx", "torchx-0.7.0.dist-info", "typing_extensions.py"]
    assert borrowed([*ours, *others, "distutils-precedence.pth", "__pycache__"]) == others


def test_a_command_without_a_network() -> None:
    """Not even the loopback interface is up; where that can't be had, the table says so."""
    if not without_network():
        pytest.skip("run as root, or allow user namespaces, to take the network from a command (apt: util-linux)")
    look = ["cat", "/proc/net/route", "/proc/net/if_inet6"]
    done = subprocess.run([*without_network(), *look], capture_output=True, text=True, timeout=scaled(30), check=False)
    assert len(done.stdout.splitlines()) <= 1, done.stdout  # the heading of the routes


@pytest.mark.parametrize("way", WAYS)
def test_each_place_has_its_own_torchft_x(way: str, workshop: Workshop) -> None:
    place = workshop.place("this", way)
    assert place.run_python("-c", FIND).stdout == ("[]\n" if way == "bare clone" else "['torchft_x']\n")
    done = place.run_python("-c", "import torchft_x; print(torchft_x.__file__)")
    assert done.stdout == f"{place.package / '__init__.py'}\n", done.stderr
    if way == "bare clone":  # it was found in the current directory
        done = place.run_python("-I", "-c", "import torchft_x")
        assert "No module named 'torchft_x'" in done.stderr


@pytest.mark.parametrize("way", ["wheel", "editable"])
def test_an_installed_base_does_not_leak(way: str, workshop: Workshop, tmp_path: Path) -> None:
    """Neither its code nor its metadata, by which TorchX finds components. ./scripts/test has such a base."""
    base = str(workshop.place("this", way).python)
    python = make_environment(base, base, tmp_path / "place")
    code = f"{FIND}\nimport torchx, torch\nimport torchft_x"
    done = subprocess.run(
        [str(python), "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
    assert "No module named 'torchft_x'" in done.stderr

"""Checks of the installed software: Python, our dependencies, and the line of TorchX. It imports none of them."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import torchft_x
from torchft_x._version import __version__
from torchft_x.errors import ConfigError
from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning
from torchft_x.launch.process.devices import ask_torch

BOUNDS: dict[str, tuple[str, str | None]] = {
    "torch": ("2.11", None),
    "grpcio": ("1.60", None),
    "protobuf": ("6.31", "8"),
    "fsspec": ("2024.2", None),
    "isal": ("1.7", None),
    "h11": ("0.14", None),
    "prometheus-client": ("0.20", None),
    "rich": ("13", None),
    "torchx": ("0.7.0", None),
}
"""Package -> lowest version, and the version that is too high. A test compares them with pyproject.toml."""
PYTHON = (3, 10)
_NEWEST_PYTHON = (3, 13)  # newest version that the tests run on


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_python(_: Case) -> Iterator[Finding]:
    own = Path(torchft_x.__file__).resolve().parent
    how = "installed" if version_of("torchft_x") else "a bare clone"
    ours = f"torchft_x {__version__}, {how}, in {own}"
    here = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON:
        yield problem(f"{here} is too old; torchft_x needs 3.10 or newer.")
    elif sys.version_info[:2] > _NEWEST_PYTHON:
        yield warning(f"{here} is newer than what torchft_x is tested with (3.13); {ours}.")
    else:
        yield ok(f"{here}; {ours}.")


def check_packages(_: Case, installed: Callable[[str], str | None] = version_of) -> Iterator[Finding]:
    """Compare the versions that `installed` returns with `BOUNDS`."""
    fine = []
    for package, (least, below) in BOUNDS.items():
        version = installed(package)
        wanted = f"{package}>={least}" + (f",<{below}" if below else "")
        if version is not None and not _within(version, least, below):
            yield problem(f"{package} {version} doesn't fit torchft_x; pip install '{wanted}'.")
        elif version is not None:
            fine.append(f"{package} {version}")
        elif package != "torchx" and (package != "isal" or platform.machine() in ("x86_64", "aarch64")):
            yield problem(f"{package} is not installed here; pip install '{wanted}'.")
    stable, nightly = installed("torchx"), installed("torchx-nightly")
    if stable and nightly:
        yield problem(
            f"torchx {stable} and torchx-nightly {nightly} are both installed and write into the same package, so parts "
            "of both are mixed; pip uninstall -y torchx torchx-nightly, then install one of them."
        )
    elif not (stable or nightly):
        yield warning(
            "TorchX is not installed here: jobs may run here, but can't be launched from here; pip install torchx."
        )
    yield ok(f"{', '.join([*fine, *([f'torchx-nightly {nightly}'] if nightly else [])])}.")


def check_torch(case: Case) -> Iterator[Finding]:
    """Import torch in a process of its own, only if requested, because it takes seconds."""
    if not case.torch:
        return
    try:
        torch = ask_torch(case.environ, case.folder)
    except ConfigError as e:
        yield problem(str(e))
        return
    if "gloo" not in torch.backends:
        yield problem(f"torch {torch.version} was built without gloo, which joins groups; install another.")
    else:
        yield ok(f"torch {torch.version} sees {torch.devices} accelerators and can use {torch.backends}.")


def _within(version: str, least: str, below: str | None) -> bool:
    found = _numbers(version)
    return found >= _numbers(least) and (below is None or found < _numbers(below))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without trailing zeros, up to the first other part: (2, 13) for ``2.13.0+cpu``."""
    found = [int(n) for n in re.match(r"[\d.]*", version)[0].split(".") if n]  # type: ignore[index]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)

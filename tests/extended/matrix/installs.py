"""Environments in which a user may have torchft_x: a bare clone, a wheel, an editable install; on either TorchX line.

Each is an environment with links to the packages of a base environment, except torchft_x and other editable
installs of that. The base of TorchX 0.7.0 is the interpreter that runs the tests, that of the nightly line is
TORCHFT_X_NIGHTLY_PYTHON.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.started import ROOT, environment
from tests.unit.launch.lines import interpreter
from tests.util import scaled

WAYS = ("bare clone", "wheel", "editable")

_CONSOLE = "#!{python}\nimport sys\nfrom torchx.cli.main import main\nsys.exit(main())\n"
_OURS = ("torchft_x", "__editable__", "_virtualenv")  # entries of the base that must not be linked
_DEAD = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Installation:
    line: str
    """TorchX line: "this" (0.7) or "nightly"."""
    way: str
    python: Path
    folder: Path
    """The user's current directory: the clone, or a directory of their own if torchft_x is installed."""
    package: Path
    """Folder from which torchft_x must be imported."""

    def component(self, name: str) -> str:
        return f"./components.py:{name}" if self.way == "bare clone" else f"ft.{name}"

    def command(self, *words: str) -> list[str]:
        """Return a command with TorchX's console script of this environment."""
        return [str(self.python.with_name("torchx")), *words]

    def torchx(self, *words: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
        """Run TorchX to its end.

        `offline`: without the tools and settings of this machine's clusters, and with proxies that lead nowhere.
        """
        return _run(self.command(*words), self.folder, self.environ(offline))

    def run_python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return _run([str(self.python), *words], self.folder, self.environ())

    def environ(self, offline: bool = False) -> dict[str, str]:
        ours = str(self.python.parent)
        if not offline:
            return environment(
                PATH=f"{ours}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            )  # the PATH after `activate`
        dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _DEAD)
        nowhere = str(self.python.parent.parent / "nowhere")
        # This PATH has no sinfo, kubectl or docker.
        return environment(PATH=ours, DOCKER_HOST="tcp://127.0.0.1:9", KUBECONFIG=nowhere, HOME=nowhere, **dead)


class Workshop:
    """Maker of installations below a directory, each made once."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.installation = functools.cache(self._make_installation)
        self._clone = functools.cache(self._make_clone)
        self._wheel = functools.cache(self._make_wheel)

    def _make_installation(self, line: str, way: str, python: str = "") -> Installation:
        """Make an installation. `line` is "this" or "nightly".

        `python`: another interpreter than the base's, for packages of pure Python.
        """
        top = self._top / f"{line}-{way.replace(' ', '-')}{Path(python).name}"
        ours = _make_environment(python or interpreter(line), interpreter(line), top)
        user = top / "user"
        user.mkdir(exist_ok=True)  # the folder exists if an earlier try failed; the failure is then reported again
        if way == "bare clone":
            folder, package = self._clone("bare"), self._clone("bare") / "torchft_x"
        elif way == "wheel":
            folder, package = user, _install(ours, str(self._wheel(ours))) / "torchft_x"
        else:
            _install(ours, "--editable", str(self._clone("editable")))
            folder, package = user, self._clone("editable") / "torchft_x"
        return Installation(line, way, ours, folder, package)

    def _make_clone(self, name: str) -> Path:
        """Copy the files that `git clone` would bring if the working tree were committed. Return the folder."""
        target = self._top / f"clone-{name}"
        listed = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT, dict(os.environ))
        assert listed.returncode == 0, listed.stderr
        for file in filter(None, listed.stdout.split("\0")):
            if (ROOT / file).exists():  # else the file is deleted, and git does not know it yet
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, target / file)
        return target

    def _make_wheel(self, python: Path) -> Path:
        """Build a wheel from a clone that is deleted afterwards, so that no import can find it. Return the file."""
        source, out = self._make_clone("wheel"), self._top / "wheels"
        _pip(python, "wheel", "--wheel-dir", str(out), str(source))
        shutil.rmtree(source)
        (found,) = out.glob("*.whl")
        return found


def _make_environment(python: str, base: str, top: Path) -> Path:
    """Make an environment of `python` with the packages of `base`. Return its interpreter."""
    made = _run([python, "-m", "venv", "--without-pip", str(top)], top.parent, environment())
    assert made.returncode == 0, made.stderr
    interpreter_here = top / "bin" / "python"
    site = _site_packages(interpreter_here)
    paths = _run([base, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"], top, environment())
    for folder in map(Path, json.loads(paths.stdout)):
        if folder.name in (
            "site-packages",
            "dist-packages",
        ):  # other paths are the standard library or editable installs
            for entry in folder.iterdir():
                ours = entry.name.startswith(_OURS) or entry.suffix == ".pth" or entry.name == "__pycache__"
                if not ours and not (site / entry.name).exists():  # the first entry on the path wins
                    (site / entry.name).symlink_to(entry)
    script = top / "bin" / "torchx"
    script.write_text(_CONSOLE.format(python=interpreter_here))
    script.chmod(0o755)
    return interpreter_here


def _install(python: Path, *what: str) -> Path:
    """Install with pip, without a network. Return the environment's site-packages."""
    _pip(python, "install", *what)
    return _site_packages(python)


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(_run([str(python), "-c", code], Path("/"), environment()).stdout.strip())


def _pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", words[0], "-qq", "--no-index", "--no-deps", "--no-build-isolation", *words[1:]]
    done = _run(command, python.parent, environment(PIP_DISABLE_PIP_VERSION_CHECK="1"))
    assert done.returncode == 0, (
        f"pip {words[0]} failed; the base environment needs pip and setuptools>=77: {done.stderr}"
    )


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=scaled(120), check=False
    )

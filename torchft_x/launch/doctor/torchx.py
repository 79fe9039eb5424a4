"""Checks of TorchX: its plugins, and its configuration files with their pitfalls."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning

BUILT_IN_SCHEDULERS = ("local_cwd", "slurm", "kubernetes")
BUILT_IN_COMPONENTS = ("dist", "utils")
_SECONDS = 90.0  # deadline, in case a plugin hangs at import; a busy machine has needed 30 s without one
# TorchX imports every plugin, so it is asked in another process. Like the torchx command, the program creates the
# subcommands first, because ours registers the schedulers on 0.7.0 (launch/plugin/command.py).
_ASK = """if True:
    import json
    from torchx.cli.main import get_sub_cmds
    get_sub_cmds()
    from torchx.schedulers import get_default_scheduler_name, get_scheduler_factories
    from torchx.specs.finder import get_components
    print("answer " + json.dumps({
        "schedulers": list(get_scheduler_factories()),
        "default": get_default_scheduler_name(),
        "components": sorted(get_components()),
    }))
"""


def check_torchx(case: Case) -> Iterator[Finding]:
    """Check the plugins, then the configuration, which may name one of their schedulers."""
    asked = ask(case) if find_spec("torchx") is not None else None
    if isinstance(asked, Finding):
        yield asked
    elif asked is not None:
        yield from plugin_findings(asked, _registered("torchx.schedulers"))
    yield from config_findings(config_files(case), list(asked["schedulers"]) if isinstance(asked, dict) else None)


def ask(case: Case) -> dict[str, Any] | Finding:
    """Return TorchX's schedulers, its default scheduler and its components, or a finding if TorchX fails."""
    command = [sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=case.folder, check=False)
    except subprocess.TimeoutExpired:
        return problem(f"TorchX did not list its plugins within {_SECONDS:g} s; one of them hangs at import.")
    answer = next((line[7:] for line in done.stdout.splitlines() if line.startswith("answer ")), None)
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return problem(f"TorchX can't load its plugins, so no torchx command works here: {last}")
    found: dict[str, Any] = json.loads(answer)
    return found


def plugin_findings(asked: dict[str, Any], registered: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings about schedulers and components. `registered` has other packages that register schedulers."""
    schedulers = list(asked["schedulers"])
    hidden = [s for s in BUILT_IN_SCHEDULERS if s not in schedulers]
    others = " and ".join(registered)
    shown, default = ", ".join(schedulers), f"the default is {asked['default']}"
    if hidden:
        yield problem(
            f"TorchX's own {', '.join(hidden)} {'is' if len(hidden) == 1 else 'are'} hidden by a plugin of "
            f"{others or 'another package'}, only {shown} can be seen; uninstall the plugin, or use torchx-nightly, which "
            "keeps both."
        )
    elif registered:
        yield warning(
            f"{others} brings schedulers of its own, and {default}; give -s, or set scheduler in .torchxconfig."
        )
    roots = {str(name).split(".")[0] for name in asked["components"]}
    lost = [c for c in BUILT_IN_COMPONENTS if c not in roots]
    if lost:
        yield warning(
            f"TorchX's own {' and '.join(lost)} components are hidden by those of another package, which must register "
            'them again (dist = "torchx.components.dist") to bring them back.'
        )
    how = "torchx run ft.hsdp works anywhere" if "ft" in roots else "torchx run ./components.py:hsdp works in a clone"
    if not (hidden or registered or lost):
        yield ok(f"Schedulers {shown}; {default} where .torchxconfig names none; {how}.")


def _registered(group: str) -> list[str]:
    """Return the names of the packages with plugins in this group, except ours."""
    names = {p.dist.name for p in metadata.entry_points(group=group) if p.dist is not None}
    return sorted(names - {"torchft_x", "torchft-x"})


def config_files(case: Case) -> list[Path]:
    """Return the files that TorchX reads. Settings of earlier ones take precedence."""
    given = env.read(env.TORCHX_CONFIG, None, case.environ)
    if given is not None:
        return [Path(given)]
    files = [case.home / ".torchxconfig", case.folder / ".torchxconfig"]
    return [f for f in dict.fromkeys(files) if f.is_file()]


def config_findings(files: list[Path], schedulers: list[str] | None) -> Iterator[Finding]:
    """Yield the findings about the configuration. `schedulers` has TorchX's own and registered ones, None if unknown."""
    values: dict[tuple[str, str], tuple[Path, str]] = {}  # section and key -> the file that wins, and its value
    wrong = []
    for path in files:
        parser = configparser.ConfigParser()
        try:
            parser.read_string(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
            wrong.append(problem(f"{path} can't be read, so every torchx command fails: {reason}."))
            continue
        for section in parser.sections():
            try:
                parser.items(section)  # TorchX, too, interpolates whole sections
            except configparser.InterpolationError as e:
                what = f"{path}: the value of {e.option} in [{section}] holds a '%'"
                wrong.append(problem(f"{what}, so every torchx command that reads it fails; write %% for it."))
            for key, value in parser.items(section, raw=True):
                stronger, other = values.setdefault((section, key), (path, value))
                if other != value:
                    what = f"{stronger} says {key} = {other} in [{section}] and wins over {path}, which says {value}"
                    wrong.append(warning(f"{what}; take it out of the first if the project's is meant."))
    where, named = values.get(("cli:run", "scheduler"), (None, ""))
    if where is not None and schedulers is not None and named not in schedulers:
        wrong.append(
            problem(
                f"{where}: scheduler = {named} is none that TorchX knows here ({', '.join(schedulers)}); torchx run without "
                "-s ends with a traceback."
            )
        )
    names = " and ".join(map(str, files)) or "No .torchxconfig: torchx run needs a component then"
    yield from wrong or [ok(f"{names}.")]

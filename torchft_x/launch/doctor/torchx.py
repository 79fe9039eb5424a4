"""Checks of TorchX: its plugins, and its configuration files with their pitfalls."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning

BUILT_IN_SCHEDULERS = ("local_cwd", "slurm", "kubernetes")
BUILT_IN_COMPONENTS = ("dist", "utils")
_READERS = {"cli": "every torchx command fails", "component": "every torchx run fails, whatever the component"}
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
        yield scheduler_finding(asked, _registered("torchx.schedulers"))
        yield component_finding(asked, _registered("torchx.components"))
    known = list(asked["schedulers"]) if isinstance(asked, dict) else None
    yield from config_findings(config_files(case), known)


def ask(case: Case) -> dict[str, Any] | Finding:
    """Return TorchX's schedulers, its default scheduler and its components, or a finding if TorchX fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, cwd=case.folder, check=False
        )
    except subprocess.TimeoutExpired:
        return problem(
            "plugins", f"TorchX did not list its plugins within {_SECONDS:g} s; one of them hangs at import."
        )
    answer = next((line[7:] for line in done.stdout.splitlines() if line.startswith("answer ")), None)
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return problem("plugins", f"TorchX can't load its plugins, so no torchx command works here: {last}")
    found: dict[str, Any] = json.loads(answer)
    return found


def scheduler_finding(asked: dict[str, Any], registered: list[str]) -> Finding:
    """Return the finding about the schedulers. `registered` has other packages that register schedulers."""
    schedulers = list(asked["schedulers"])
    by = f" by a plugin of {' and '.join(registered)}" if registered else ""
    hidden = [s for s in BUILT_IN_SCHEDULERS if s not in schedulers]
    if hidden:
        return problem(
            "schedulers",
            f"TorchX's own {', '.join(hidden)} {'is' if len(hidden) == 1 else 'are'} hidden{by}, only "
            f"{', '.join(schedulers)} can be seen; uninstall the plugin, or use torchx-nightly, which keeps both.",
        )
    default = f"the default is {asked['default']}"
    if registered:
        return warning(
            "schedulers",
            f"{' and '.join(registered)} brings schedulers of its own, and {default}; give -s, or set scheduler in "
            ".torchxconfig.",
        )
    return ok("schedulers", f"{', '.join(schedulers)}; {default} where .torchxconfig names none.")


def component_finding(asked: dict[str, Any], registered: list[str]) -> Finding:
    roots = {str(name).split(".")[0] for name in asked["components"]}
    hidden = [c for c in BUILT_IN_COMPONENTS if c not in roots]
    if hidden:
        by = f" by the components of {' and '.join(registered)}" if registered else ""
        return warning(
            "components",
            f"TorchX's own {' and '.join(hidden)} components are hidden{by}; that package must register them again "
            '(dist = "torchx.components.dist") to bring them back.',
        )
    how = "torchx run ft.hsdp works anywhere" if "ft" in roots else "torchx run ./components.py:hsdp works in a clone"
    return ok("components", f"{how}; TorchX's own are visible.")


def _registered(group: str) -> list[str]:
    """Return the names of the packages with plugins in this group, except ours."""
    names = {p.dist.name for p in metadata.entry_points(group=group) if p.dist is not None}
    return sorted(names - {"torchft_x", "torchft-x"})


# --- .torchxconfig -----------------------------------------------------------------------------------------------------


def config_files(case: Case) -> list[Path]:
    """Return the files that TorchX reads. Settings of earlier ones take precedence."""
    given = env.read(env.TORCHX_CONFIG, None, case.environ)
    if given is not None:
        return [Path(given)]
    files = [case.home / ".torchxconfig", case.folder / ".torchxconfig"]
    return [f for f in dict.fromkeys(files) if f.is_file()]


def config_findings(files: list[Path], schedulers: list[str] | None) -> Iterator[Finding]:
    """Yield the findings about the configuration. `schedulers` has TorchX's own and registered ones, None if unknown."""
    read: list[tuple[Path, configparser.RawConfigParser]] = []
    clean = True
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            with open(path, encoding="utf-8") as f:
                parser.read_file(f)
        except (OSError, UnicodeDecodeError, configparser.Error) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
            yield problem("torchxconfig", f"{path} can't be read, so every torchx command fails: {reason}.")
            clean = False
            continue
        read.append((path, parser))
        for found in _percents(path, parser):
            yield found
            clean = False
    settings = list(_settings(read))
    for found in [*_conflicts(read), *_scheduler(settings, schedulers)]:
        yield found
        clean = False
    if clean:
        names = " and ".join(str(path) for path in files) or "there is none; torchx run needs a component then"
        yield ok("torchxconfig", f"{names}.")


def _percents(path: Path, parser: configparser.RawConfigParser) -> Iterator[Finding]:
    """Yield a problem for each bare '%', a syntax error in the interpolation that TorchX applies to whole sections."""
    interpolation = configparser.BasicInterpolation()
    for section in parser.sections():
        fails = _READERS.get(section.split(":")[0], f"every torchx command that reads [{section}] fails")
        values = dict(parser.items(section))
        for key, value in values.items():
            try:
                interpolation.before_get(parser, section, key, value, values)
            except configparser.Error:
                text = f"{path}: the value of {key} in [{section}] holds a '%', so {fails}; write %% for it."
                yield problem("torchxconfig", text)


def _settings(
    read: list[tuple[Path, configparser.RawConfigParser]],
) -> Iterator[tuple[Path, str, str, str]]:
    for path, parser in read:
        for section in parser.sections():
            for key, value in parser.items(section):
                yield path, section, key, value


def _conflicts(read: list[tuple[Path, configparser.RawConfigParser]]) -> Iterator[Finding]:
    first: dict[tuple[str, str], tuple[Path, str]] = {}
    for path, section, key, value in _settings(read):
        stronger, other = first.setdefault((section, key), (path, value))
        if other != value:
            yield warning(
                "torchxconfig",
                f"{stronger} says {key} = {other} in [{section}] and wins over {path}, which says {value}; "
                "take it out of the first if the project's is meant.",
            )


def _scheduler(settings: list[tuple[Path, str, str, str]], schedulers: list[str] | None) -> Iterator[Finding]:
    named = next(((p, v) for p, section, key, v in settings if (section, key) == ("cli:run", "scheduler")), None)
    if named is not None and schedulers is not None and named[1] not in schedulers:
        yield problem(
            "torchxconfig",
            f"{named[0]}: scheduler = {named[1]} is none that TorchX knows here ({', '.join(schedulers)}); torchx run "
            "without -s ends with a traceback.",
        )

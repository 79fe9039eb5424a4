"""Options of ``-cfg`` for `slurm_ft`, and their translation into options of sbatch and srun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torchft_x.errors import ConfigError

OPTIONS: dict[str, tuple[type, str]] = {
    "partition": (str, "of Slurm; the cluster's default partition if unset"),
    "account": (str, "that pays"),
    "qos": (str, "quality of service"),
    "time": (str, "the longest time of each part, as sbatch takes it; the partition's limit if unset"),
    "exclusive": (bool, "each group has its nodes for itself"),
    "constraint": (str, "features that the groups' nodes must have"),
    "reservation": (str, "use the nodes of this reservation"),
    "gres": (str, "generic resources of each of a group's nodes, instead of what --gpu says: gpu:h100:8"),
    "gpus-per-node": (str, "the same by sbatch's newer option: h100:8"),
    "nodelist": (str, "nodes that the group uses, all of them; only for a job of one group"),
    "exclude": (str, "nodes that no part may use"),
    "signal": (
        str,
        "ahead of the time limit, as sbatch takes it (TERM@30 for groups); with B:USR1@SECONDS a part is queued again in time",
    ),
    "dependency": (str, "of the groups: afterok:4711"),
    "comment": (str, "behind ours, which names the app"),
    "mail-user": (str, "who is told"),
    "mail-type": (str, "of what: END, FAIL, ..."),
    "array_limit": (int, "how many groups may run at once"),
    "start_deadline": (
        int,
        "seconds in which a group that Slurm calls RUNNING must report, or it is started elsewhere (600)",
    ),
    "sbatch_args": (str, "more words for sbatch, for every part: --licenses a --nice 100"),
    "container-image": (str, "of pyxis: the parts run in it (not tried here)"),
    "container-mounts": (str, "of pyxis: SRC:DST[:FLAGS], with commas (not tried here)"),
    "run_dir": (str, "where the job's state is kept, unless the component says it; all nodes must see it"),
}
"""Type and help text of each option, by its name."""
_ALL = ("account", "qos", "time", "reservation", "exclude", "mail-user", "mail-type")  # passed unchanged for every part
_EARLY = 60  # seconds by which Slurm may send a signal early
_WORTH = 60  # least seconds of training per submission; with less, a part would be requeued again without progress
_NOTICE = "--signal=TERM@30"
"""Early SIGTERM to a group's step only. At the limit Slurm signals srun too, which then kills the step before it can save."""
_LONG = 300  # shortest time limit, in seconds, for which ending up to 90 s early is acceptable
_GROUPS = ("constraint", "nodelist", "signal")
_OURS = {"array", "job-name", "comment", "output", "error", "requeue", "no-requeue", "open-mode", "parsable", "wrap", "ntasks",
         "nodes", "chdir", "export", "export-file", "wait", "test-only", "hold", "ntasks-per-node"}  # fmt: skip
_SHORT = {"a": "array", "J": "job-name", "o": "output", "e": "error", "n": "ntasks", "N": "nodes", "D": "chdir",
          "W": "wait", "H": "hold"}  # fmt: skip


def words(cfg: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """Return sbatch's and srun's options for a part of that kind: lighthouse, trainer, sidecar or ''. Raise `ConfigError`."""
    given = {name: str(value) for name in OPTIONS if (value := cfg.get(name)) not in (None, "", False)}
    found = [f"--{name}={given[name]}" for name in _ALL if name in given]
    found += [f"--{name}={given[name]}" for name in _GROUPS if name in given and kind != "lighthouse"]
    limit = seconds(given.get("time", ""))
    own = "signal" in given or "--signal" in given.get("sbatch_args", "")
    if kind == "trainer" and not own and (limit is None or limit >= _LONG):
        found.append(_NOTICE)
    found += [f"--dependency={given['dependency']}"] if "dependency" in given and kind != "sidecar" else []
    found += [f"--partition={given['partition']}"] if "partition" in given else []
    if kind in ("trainer", ""):
        found += ["--exclusive"] if cfg.get("exclusive") else []
        found += [f"--{name}={given[name]}" for name in ("gres", "gpus-per-node") if name in given]
    found += _more(given.get("sbatch_args", ""))
    srun = [f"--{name}={given[name]}" for name in ("container-image", "container-mounts") if name in given]
    return found, srun


def check(cfg: Mapping[str, Any], groups: int) -> None:
    """Raise `ConfigError` for options that contradict each other or the component, which has so many groups."""
    if cfg.get("nodelist") and groups > 1:
        raise ConfigError(
            f"-cfg nodelist={cfg['nodelist']}: each group would ask for all of these nodes, so that one ran after the other; use "
            "exclude, constraint or reservation."
        )
    if cfg.get("start_deadline") is not None and int(cfg["start_deadline"]) < 1:
        raise ConfigError(f"-cfg start_deadline={cfg['start_deadline']}: it is a number of seconds, at least 1.")
    limit = cfg.get("array_limit")
    if limit is not None and int(limit) < 1:
        raise ConfigError(f"-cfg array_limit={limit}: at least one group must be able to run.")
    if cfg.get("container-mounts") and not cfg.get("container-image"):
        raise ConfigError("-cfg container-mounts is for -cfg container-image, which is not given.")
    _check_time(str(cfg.get("time") or ""), str(cfg.get("signal") or ""))


def _check_time(text: str, signal: str) -> None:
    """Raise `ConfigError` if a part would be requeued ahead of its time limit before it has made progress."""
    ahead = signal.partition("@")[2] or "60"
    limit = seconds(text)
    if limit is None or not signal.upper().startswith("B:USR1") or not ahead.isdecimal():
        return
    least = int(ahead) + _EARLY + _WORTH
    if limit < least:
        raise ConfigError(
            f"-cfg time={text},signal={signal}: a group is queued again up to {least - _WORTH} s ahead of the limit, so it "
            f"would never run for long; give at least {-(-least // 60)} minutes, or fewer seconds."
        )


def seconds(text: str) -> int | None:
    """Return the seconds of a time in sbatch's format: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Return None for no limit, or for text of another format.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        return None
    days, *rest = (None if part is None else int(part) for part in found.groups())
    numbers = [part for part in rest if part is not None]
    if days is not None:
        hours, minutes, secs = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, secs = numbers
    else:
        (minutes, secs), hours = (*numbers, 0)[:2], 0
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + secs or None


def _more(text: str) -> Sequence[str]:
    try:
        found = shlex.split(text)
    except ValueError as e:
        raise ConfigError(f"-cfg sbatch_args={text!r}: {e}.") from None
    words: list[str] = []
    for word in found:
        if not word.startswith("-"):
            if not words or "=" in words[-1] or not words[-1].startswith("--"):
                raise ConfigError(f"-cfg sbatch_args: {word!r} is no option of sbatch; write --NAME VALUE.")
            words[-1] += f"={word}"
            continue
        name = word.removeprefix("--").partition("=")[0] if word.startswith("--") else _SHORT.get(word[1:2], "")
        if name in _OURS:
            raise ConfigError(f"-cfg sbatch_args: --{name} is slurm_ft's own to set.")
        words.append(word)
    return words

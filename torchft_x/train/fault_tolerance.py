"""Reads the ``[fault_tolerance]`` section of a training configuration: torchtitan's keys, from TOML and from flags.

::

    [fault_tolerance]
    enable = true
    sync_steps = 10
    num_fragments = 2
    semi_sync_method = "diloco"

or ``--fault_tolerance.sync_steps=10``. Flags override the file, the file overrides the environment that a component
sets, and the environment overrides the defaults. A script calls `parse_args`. Only `make_process_group` needs torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import json
import os
import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.core.training.sync_schedule import Settings
from torchft_x.core.types import FORMATS
from torchft_x.errors import ConfigError

SECTION = "fault_tolerance"
PROCESS_GROUPS = {
    "gloo": "ProcessGroupGloo",
    "nccl": "ProcessGroupNCCL",
    "xccl": "ProcessGroupXCCL",
    "baby-gloo": "ProcessGroupBabyGloo",
    "baby-nccl": "ProcessGroupBabyNCCL",
    "baby-xccl": "ProcessGroupBabyXCCL",
}
"""Values of the setting ``process_group``, and the names of their classes in `torchft_x`."""
METHODS = ("diloco", "local_sgd")


@dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """Checked settings of fault-tolerant training. Construction raises `ConfigError`, which names the wrong key."""

    enable: bool = False
    process_group: str = "gloo"
    """Process group between the replica groups: a key of `PROCESS_GROUPS`."""
    process_group_timeout_ms: int = 10000
    """Timeout in milliseconds of reductions between the groups, heals and votes."""
    replica_id: int = 0
    """Number of this replica group, from 0; REPLICA_GROUP_ID if that is set."""
    group_size: int = 0
    """Number of replica groups (NUM_REPLICA_GROUPS); 0 if it is not given."""
    min_replica_size: int = 1
    """Fewest groups for an exchange."""
    semi_sync_method: str | None = None
    """One of `METHODS`; None if the groups average the gradients of each step."""
    sync_steps: int = 5
    """Inner steps between two exchanges of the same fragment."""
    should_quantize: bool | str = False
    """False, True (int8), or one of `FORMATS`."""
    fragment_sync_delay: int = 0
    """Number of inner steps that an exchange may take in the background."""
    fragment_update_alpha: float = 0.0
    """Share of the local weights in the weights after an exchange, from 0 to 1."""
    module_fqns_per_model_fragment: tuple[tuple[str, ...], ...] = ()
    """Names of the modules of each fragment; if empty, the model is cut into `num_fragments` of about one size."""
    num_fragments: int = 1
    rank0_synchronization_only: bool = False
    """Whether rank 0 of each group exchanges for all of its ranks. Groups may then have different world sizes."""
    copy_pseudogradients_to_cpu: bool = False
    """Whether pseudo-gradients are copied to the CPU before they are exchanged."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _checked(f.name, getattr(self, f.name), f.type))
        if self.process_group not in PROCESS_GROUPS:
            if self.process_group == "mccl":  # torchtitan's name for torchcomms
                raise ConfigError(
                    f"{SECTION}.process_group 'mccl' is not offered (docs/process_groups.md, torchcomms); write 'nccl'."
                )
            nearest = _nearest(self.process_group, tuple(PROCESS_GROUPS))
            raise ConfigError(f"{SECTION}.process_group {self.process_group!r} is unknown; {nearest}")
        if self.semi_sync_method is not None and self.semi_sync_method not in METHODS:
            raise ConfigError(
                f"{SECTION}.semi_sync_method {self.semi_sync_method!r} is unknown; {_nearest(self.semi_sync_method, METHODS)}"
            )
        for name, least in (
            ("process_group_timeout_ms", 1),
            ("replica_id", 0),
            ("group_size", 0),
            ("min_replica_size", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{SECTION}.{name} is {getattr(self, name)}; it must be {least} or more.")
        if self.group_size and self.replica_id >= self.group_size:
            raise ConfigError(
                f"{SECTION}.replica_id is {self.replica_id}, but there are {self.group_size} groups (group_size); they are "
                "numbered from 0."
            )
        named = len(self.module_fqns_per_model_fragment)
        if named and self.num_fragments not in (1, named):
            raise ConfigError(
                f"{SECTION}.num_fragments is {self.num_fragments}, but module_fqns_per_model_fragment names {named}."
            )
        if not 0.0 <= self.fragment_update_alpha <= 1.0:
            raise ConfigError(
                f"{SECTION}.fragment_update_alpha is {self.fragment_update_alpha}; it must lie between 0 and 1."
            )
        if self.rank0_synchronization_only and self.fragments != 1:
            raise ConfigError(
                f"{SECTION}.rank0_synchronization_only needs num_fragments = 1, and it is {self.fragments}: rank 0 gathers the "
                "whole model at once."
            )
        if self.rank0_synchronization_only and self.semi_sync_method == "local_sgd":
            raise ConfigError(f'{SECTION}.rank0_synchronization_only works with semi_sync_method "diloco" only.')
        if self.semi_sync_method == "local_sgd" and (self.fragments != 1 or self.fragment_sync_delay):
            raise ConfigError(f"{SECTION}: local_sgd averages the whole model at once; leave out fragments and delay.")
        if self.semi_sync_method is not None:
            try:
                Settings(sync_every=self.sync_steps, fragments=self.fragments, delay=self.fragment_sync_delay)
            except ConfigError as e:
                raise ConfigError(f"{SECTION}: {str(e).replace('sync_every', 'sync_steps')}") from None

    @property
    def fragments(self) -> int:
        return len(self.module_fqns_per_model_fragment) or self.num_fragments


def make_process_group(ft: FaultTolerance, device: Any = None) -> Any:
    """Make the process group that `ft` names; needs torch.

    Raises `ConfigError`, with the process group's own message, if this machine can't run it, and if it takes no tensors
    on `device` (a torch.device).
    """
    kind = getattr(importlib.import_module("torchft_x"), PROCESS_GROUPS[ft.process_group])
    pg = kind(timeout=ft.process_group_timeout_ms / 1000)
    if device is not None and getattr(pg, "takes", None) not in (None, device.type):
        raise ConfigError(
            f"{SECTION}.process_group {ft.process_group} takes no tensors on {device.type}; choose another --device, "
            "or gloo."
        )
    return pg


KEYS = tuple(f.name for f in dataclasses.fields(FaultTolerance))
EACH_STEP = ("enable", "process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size")
"""Keys for groups that average each step. The other ones are about groups that train apart."""


def parse_args(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    *,
    training: Sequence[str] = (),
    apart: bool = False,
) -> argparse.Namespace:
    """Parse a script's own arguments together with torchtitan's: ``--config FILE`` and ``--SECTION.KEY=VALUE``.

    In the result, `ft` holds the checked `FaultTolerance`, and `given` the names of its keys that the file or a flag
    sets. A replica_id and a group_size that are given become REPLICA_GROUP_ID and NUM_REPLICA_GROUPS of this process.
    Names in the file that mean nothing to the script are listed on stderr.

    Args:
        parser: the script's parser; ``--config`` is added to it.
        argv: the arguments (``sys.argv[1:]``).
        training: options of `parser`, with defaults, that the section [training] sets as well.
        apart: the groups train apart (LocalSGD, DiLoCo). If False, keys about that are refused.

    Raises `ConfigError` for an unknown key, a wrong value, or a key that can't be used with `apart`.
    """
    known = {SECTION: KEYS, "training": training}
    flags, rest = take_flags(sys.argv[1:] if argv is None else argv, known)
    parser.add_argument("--config", "--job.config_file", metavar="FILE", help=f"TOML with [{SECTION}] and [training]")
    args = parser.parse_args(rest)
    file = read_toml(args.config) if args.config else {}
    section = file.get(SECTION, {})
    defaults = {} if args.config else {"enable": True, **({"semi_sync_method": "diloco"} if apart else {})}
    args.ft = resolve({**defaults, **section}, flags[SECTION])
    args.given = frozenset({**section, **flags[SECTION]})
    _check_use(args.ft, flags[SECTION], apart)
    settings = {**file.get("training", {}), **flags["training"]}
    unused = [f"[{name}]" for name in file if name not in known]
    unused += [f"{key} of [training]" for key in settings if key not in training]
    unused += [f"{key} of [{SECTION}]" for key in section if not (apart or key in (*EACH_STEP, "semi_sync_method"))]
    for name in unused:
        print(f"{os.path.basename(sys.argv[0])}: {args.config}: {name} means nothing to this script", file=sys.stderr)
    for key in training:
        if key in settings:
            setattr(args, key, _checked(key, settings[key], type(getattr(args, key)).__name__, "training"))
    if "replica_id" in args.given:
        env.set_default(env.REPLICA_GROUP_ID, str(args.ft.replica_id))
    if args.ft.group_size:
        env.set_default(env.NUM_REPLICA_GROUPS, str(args.ft.group_size))
    return args


def _check_use(ft: FaultTolerance, flags: Mapping[str, str], apart: bool) -> None:
    """Raise `ConfigError` if the settings are not for this kind of training, or turn fault tolerance off."""
    if not ft.enable:
        raise ConfigError(f"[{SECTION}] doesn't say enable = true: say so, or --{SECTION}.enable.")
    if apart and ft.semi_sync_method is None:
        raise ConfigError(
            f'[{SECTION}] doesn\'t say semi_sync_method = "diloco" or "local_sgd": this script is about groups that '
            "train apart; train_ddp.py and train_hsdp.py average each step."
        )
    if not apart and ft.semi_sync_method is not None:
        raise ConfigError(
            f"{SECTION}.semi_sync_method is {ft.semi_sync_method}, for groups that train apart: that is "
            "train_diloco.py; here they average each step, so leave the key out, or write none."
        )
    for key in flags:
        if not apart and key not in (*EACH_STEP, "semi_sync_method"):
            raise ConfigError(
                f"--{SECTION}.{key} is about groups that train apart: train_diloco.py takes it; leave it out here."
            )


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the settings that the `diloco` component puts into the environment.

    Raises `ConfigError` if the variable is no JSON object, or has an unknown key.
    """
    text = env.read(env.FAULT_TOLERANCE, "{}", environ) or ""
    try:
        found = dict(json.loads(text))
    except (ValueError, TypeError):
        raise ConfigError(f'{env.FAULT_TOLERANCE}={text!r} is no JSON object such as {{"sync_steps": 10}}.') from None
    _check_keys(found, env.FAULT_TOLERANCE)
    return found


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{where} has an unknown key {key}; {_nearest(key, KEYS)}")


def read_toml(path: str) -> dict[str, Any]:
    """Return the content of a TOML file. Raises `ConfigError`, which names the file, if it can't be read."""
    for name in ("tomllib", "tomli"):  # Python 3.10 has no tomllib
        try:
            tomllib = importlib.import_module(name)
            break
        except ModuleNotFoundError:
            continue
    else:
        raise ConfigError(f"{path}: reading TOML needs Python 3.11, or: pip install tomli.")
    try:
        parsed: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the configuration {path} can't be read: {e}.") from None
    return parsed


def take_flags(argv: Sequence[str], known: Mapping[str, Sequence[str]]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the flags ``--SECTION.KEY[=VALUE]`` of `known` sections, by section and key, and the other arguments.

    A flag without a value, before another flag or at the end, is "true". Raises `ConfigError` for an unknown key.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in known}
    rest: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        section, dot, key = name.removeprefix("--").partition(".")
        if not name.startswith("--") or not dot or section not in known:
            rest.append(word)
            continue
        key = key.replace("-", "_")
        if key not in known[section]:
            raise ConfigError(f"--{section}.{key} is unknown; {_nearest(key, known[section])}")
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else "true"
        found[section][key] = value
    return found, rest


def resolve(
    table: Mapping[str, Any], flags: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> FaultTolerance:
    """Return the settings from the file's section `table`, the flags and the environment.

    Raises `ConfigError` for an unknown key, a wrong value, and a group number or count that the launcher contradicts.
    """
    _check_keys(table, f"[{SECTION}]")
    values = {**from_environment(environ), **table, **flags}
    group = env.read(env.REPLICA_GROUP_ID, None, environ)
    if group is not None and "replica_id" in values and str(values["replica_id"]) != group:
        raise ConfigError(
            f"{SECTION}.replica_id is {values['replica_id']}, but {env.REPLICA_GROUP_ID} is {group}, as the launcher numbers "
            "this group; leave the key out."
        )
    if group is not None and group.isdecimal():
        values["replica_id"] = int(group)
    groups = env.read_int(env.NUM_REPLICA_GROUPS, None, environ)
    if groups:
        told = values.get("group_size")
        if (_checked("group_size", told, "int") if told not in (None, "") else 0) not in (0, groups):
            raise ConfigError(
                f"{SECTION}.group_size is {values['group_size']}, but {env.NUM_REPLICA_GROUPS} is {groups}; leave the key out."
            )
        values["group_size"] = groups
    return FaultTolerance(**values)


def _checked(name: str, value: Any, kind: Any, section: str = SECTION) -> Any:
    """Return the value converted to its type; text comes from a flag. Raises `ConfigError` if it can't be converted."""
    text = isinstance(value, str)
    if kind == "bool | str" and value in FORMATS:
        return value
    if kind in ("bool", "bool | str"):
        if text and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{section}.{name} is {value!r}; write true or false.")
    if kind in ("int", "float"):
        try:
            if isinstance(value, bool) or not (text or isinstance(value, int if kind == "int" else (int, float))):
                raise ValueError
            return int(value) if kind == "int" else float(value)
        except (ValueError, OverflowError):  # a float of 10**400, a text of more digits than Python reads
            number = "a whole number" if kind == "int" else "a number"
            raise ConfigError(f"{section}.{name} is {reprlib.repr(value)}; it must be {number}.") from None
    if name == "module_fqns_per_model_fragment":
        return _names(name, value)
    if text:
        return None if kind != "str" and value.lower() in ("none", "") else value
    if value is None and kind != "str":
        return None
    raise ConfigError(f"{section}.{name} is {value!r}; it must be text.")


def _names(name: str, value: Any) -> tuple[tuple[str, ...], ...]:
    """Return lists of lists of names; a flag gives them as ``a,b;c`` for [[a, b], [c]]."""
    if isinstance(value, str):
        value = [part.split(",") for part in value.split(";") if part]
    good = isinstance(value, (list, tuple)) and all(
        isinstance(part, (list, tuple)) and part and all(isinstance(fqn, str) and fqn for fqn in part) for part in value
    )
    if not good:
        raise ConfigError(f"{SECTION}.{name} is {value!r}; it must be a list of lists of module names.")
    return tuple(tuple(part) for part in value)


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."

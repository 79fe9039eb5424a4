"""Reads the ``[fault_tolerance]`` section of a training configuration: torchtitan's keys, from TOML and from flags.

::

    [fault_tolerance]
    enable = true
    sync_steps = 10
    num_fragments = 2
    semi_sync_method = "diloco"

or ``--fault_tolerance.sync_steps=10``. Flags override the file, the file overrides the environment that a component
sets, and the environment overrides the defaults. A script calls `parse_args`.
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
from collections.abc import Callable, Mapping, Sequence
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
_TRAINING = "--training."


@dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """Settings of fault-tolerant training. Construction raises `ConfigError`, which names the key, for a wrong value."""

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


KEYS = tuple(f.name for f in dataclasses.fields(FaultTolerance))
EACH_STEP = ("enable", "process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size")
"""Keys for groups that average each step. The other ones are about groups that train apart."""


def parse_args(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, *, apart: bool = False
) -> argparse.Namespace:
    """Parse a script's own arguments together with torchtitan's: ``--config FILE`` and ``--fault_tolerance.KEY=VALUE``.

    In the result, `ft` holds the checked `FaultTolerance`, and `given` the names of its keys that the file or a flag
    sets. A replica_id and a group_size that are given become REPLICA_GROUP_ID and NUM_REPLICA_GROUPS of this process.
    The file's section [training] sets the options of `parser` that are also called ``--training.KEY``. Names in the
    file that mean nothing to the script are listed on stderr.

    Args:
        parser: the script's parser, to which options are added. From then on it takes no abbreviated options.
        argv: the arguments (``sys.argv[1:]``).
        apart: the groups train apart (LocalSGD, DiLoCo). If False, keys about that are refused.

    Raises `ConfigError` for an unknown key, a wrong value, or a key that can't be used with `apart`.
    """
    parser.allow_abbrev = False
    parser.add_argument("--config", "--job.config_file", metavar="FILE", help=f"TOML with [{SECTION}] and [training]")
    for key in KEYS:
        parser.add_argument(
            f"--{SECTION}.{key}", f"--{SECTION}.{key.replace('_', '-')}",
            nargs="?", const="true", default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip
    training = [word.removeprefix(_TRAINING) for word in parser._option_string_actions if word.startswith(_TRAINING)]
    argv = sys.argv[1:] if argv is None else list(argv)
    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        for prefix, known in ((f"--{SECTION}.", KEYS), (_TRAINING, training)):
            if word.startswith(prefix):
                flag = word.partition("=")[0]
                raise ConfigError(f"{flag} is unknown; {_nearest(flag.removeprefix(prefix), known)}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    file = read_toml(args.config) if args.config else {}
    section, settings = file.get(SECTION, {}), file.get("training", {})
    _check_keys(section, f"[{SECTION}]")
    args = parser.parse_args([f"{_TRAINING}{k}={_text(k, v)}" for k, v in settings.items() if k in training] + argv)
    flags = {key: getattr(args, f"{SECTION}.{key}") for key in KEYS if hasattr(args, f"{SECTION}.{key}")}
    defaults = {} if args.config else {"enable": True, **({"semi_sync_method": "diloco"} if apart else {})}
    args.ft = _resolve({**from_environment(), **defaults, **section, **flags})
    args.given = frozenset({**section, **flags})
    _check_use(args.ft, flags, apart)
    unused = [f"[{name}]" for name in file if name not in (SECTION, "training")]
    unused += [f"{key} of [training]" for key in settings if key not in training]
    unused += [f"{key} of [{SECTION}]" for key in section if not (apart or key in (*EACH_STEP, "semi_sync_method"))]
    for name in unused:
        print(f"{os.path.basename(sys.argv[0])}: {args.config}: {name} means nothing to this script", file=sys.stderr)
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


def _resolve(settings: Mapping[str, Any]) -> FaultTolerance:
    """Return the checked settings. Raises `ConfigError` also for a number of groups that the launcher contradicts."""
    values = {key: _value(key, _text(key, value)) for key, value in settings.items()}
    group = env.read(env.REPLICA_GROUP_ID)
    if group is not None and str(values.get("replica_id", group)) != group:
        raise ConfigError(
            f"{SECTION}.replica_id is {values['replica_id']}, but {env.REPLICA_GROUP_ID} is {group}, as the launcher numbers "
            "this group; leave the key out."
        )
    if group is not None and group.isdecimal():
        values["replica_id"] = int(group)
    groups = env.read_int(env.NUM_REPLICA_GROUPS)
    if groups:
        if values.get("group_size", 0) not in (0, groups):
            raise ConfigError(
                f"{SECTION}.group_size is {values['group_size']}, but {env.NUM_REPLICA_GROUPS} is {groups}; leave the key out."
            )
        values["group_size"] = groups
    return FaultTolerance(**values)


def boolean(text: str) -> bool:
    """Return the value of a flag that is true or false. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _names(text: str) -> tuple[tuple[str, ...], ...]:
    """Return lists of names, given as JSON or as ``a,b;c`` for [[a, b], [c]]. Raises ValueError."""
    lists = json.loads(text) if text.startswith("[") else [part.split(",") for part in text.split(";") if part]
    if not all(isinstance(part, list) and part and all(isinstance(n, str) and n for n in part) for part in lists):
        raise ValueError(text)
    return tuple(map(tuple, lists))


_TYPES: dict[str, tuple[Callable[[str], Any], str]] = {
    "bool": (boolean, "true or false"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "text"),
    "str | None": (lambda text: None if text.lower() in ("none", "null", "") else text, "text"),
    "bool | str": (lambda text: text if text in FORMATS else boolean(text), f"true, false, {', '.join(FORMATS)}"),
    "tuple[tuple[str, ...], ...]": (_names, "a list of lists of module names"),
}
"""For each type of a setting: the function that reads it, and what a mistake is told to be."""


def _value(key: str, text: str) -> Any:
    """Return the value of a key, given as in a flag. Raises `ConfigError`, which names both, if it is none."""
    convert, what = _TYPES[FaultTolerance.__annotations__[key]]
    try:
        return convert(text)
    except ValueError:
        raise ConfigError(f"{SECTION}.{key} is {reprlib.repr(text)}; it must be {what}.") from None


def _text(key: str, value: Any) -> str:
    """Return a value of a file or of JSON as it would be given in a flag."""
    if FaultTolerance.__annotations__.get(key, "").startswith("tuple") and not isinstance(value, str | list):
        raise ConfigError(f"{SECTION}.{key} is {reprlib.repr(value)}; it must be a list of lists of module names.")
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except ValueError:  # Python writes no number of more than 4,300 digits
        raise ConfigError(f"{key} has more digits than a setting can have.") from None


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."

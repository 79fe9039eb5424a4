"""``torchft_x checkpoint``: list and verify the checkpoints below a URL, and convert them to forms of other programs.

A conversion holds the whole state in memory, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import secrets
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, TorchftXError, TransferError
from torchft_x.timing import SAVE
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import all_of, is_complete, newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.sealed import DamagedError
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.format.flatten import join_path

_VERSIONS = "module_versions"  # JSON text beside the counters, or in the metadata of a safetensors file
COUNTERS = "torchft"  # the Manager's part, beside the parts of the script


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="torchft_x checkpoint", description="Durable checkpoints: docs/checkpoints.md.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="ls|verify|export|import")
    ls = commands.add_parser("ls", help="what is there")
    verify = commands.add_parser("verify", help="read all of it, and check each digest")
    export = commands.add_parser("export", help="write it as PyTorch's distributed checkpoint, or as safetensors")
    bring = commands.add_parser("import", help="make a checkpoint of such a folder or file")
    for command in (ls, verify, export):
        command.add_argument("url", help="folder of the checkpoints")
    for command in (verify, export):
        command.add_argument("--step", type=int, help="of the checkpoint; default: the newest complete one")
    export.add_argument("to", type=Path, metavar="PATH", help="new folder (dcp) or file (safetensors)")
    bring.add_argument("source", type=Path, metavar="PATH", help="folder (dcp) or file (safetensors)")
    bring.add_argument("url", help="folder of the checkpoints")
    bring.add_argument("--step", type=int, help="commits behind it; default: what the state says itself")
    for command in (export, bring):
        command.add_argument("--format", choices=("dcp", "safetensors"), default="dcp")
        command.add_argument("--part", default="model", help="of safetensors, which hold one (model)")
    return parser


def main(argv: list[str]) -> int:
    """Run the command and return its exit code: 1 if something is damaged or missing, 2 for a usage error."""
    args = _parser().parse_args(argv)
    acts = {"ls": _ls, "verify": _verify, "export": _export, "import": _import}
    try:
        acts[args.command](args)
    except TorchftXError as e:
        print(f"torchft_x checkpoint {args.command}: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    return 0


def _ls(args: argparse.Namespace) -> None:
    store = Store(args.url)
    found = all_of(store)
    for name in found:
        size = ranks = ""
        try:
            state = "complete" if is_complete(store, name) else "incomplete"
        except DamagedError:
            state = "damaged"
        if state == "complete":
            manifest = Saved(store, name).manifest
            size = f"{sum(n for _, n in manifest.shards) / 1e6:,.1f} MB"
            ranks = "1 rank" if manifest.ranks == 1 else f"{manifest.ranks} ranks"
        print(f"step {name.step:>8}  {state:<10}  {size:>13}  {ranks:>9}  {name}")
    if not found:
        print(f"no checkpoints in {store.shown}")


def _verify(args: argparse.Namespace) -> None:
    saved = _chosen(args)
    print(f"{saved.name}: {saved.verify() / 1e6:,.1f} MB are whole", flush=True)


def _export(args: argparse.Namespace) -> None:
    saved = _chosen(args)
    flat = to_flat(saved.load())
    if args.format == "dcp":
        write_dcp(flat, args.to)
        print(f"{saved.name}: written to {args.to}")
        return
    if args.part not in flat:
        known = ", ".join(sorted(set(flat) - {COUNTERS}))
        raise ConfigError(f"there is no part {args.part!r}; --part names one of {known}.")
    left_out = write_safetensors(flat[args.part], args.to, saved.name.step)
    more = f", without {left_out} values that are no tensors" if left_out else ""
    print(f"{saved.name}: {args.part} written to {args.to}{more}")


def _import(args: argparse.Namespace) -> None:
    store = Store(args.url)
    if not args.source.exists():
        raise ConfigError(f"{args.source} is not there.")
    flat: dict[str, Any] = read_dcp(args.source) if args.format == "dcp" else {args.part: read_safetensors(args.source)}
    state = from_flat(flat, args.step)
    shard = freeze(state, step=state[COUNTERS]["step"])
    name = names.name(shard.step, f"import-{secrets.token_hex(4)}")
    writer.write_shard(store, name, shard)
    writer.complete(store, name, shard, job=f"import-{secrets.token_hex(4)}", timeout=SAVE)
    print(f"{name}: {shard.nbytes / 1e6:,.1f} MB in {store.shown}")


def _chosen(args: argparse.Namespace) -> Saved:
    """Return the checkpoint that the arguments name. Raises `ConfigError` if it doesn't exist."""
    store = Store(args.url)
    chosen = [n for n in all_of(store) if n.step == args.step and is_complete(store, n)]
    name = newest(store) if args.step is None else next(reversed(chosen), None)
    if name is None:
        what = "no complete checkpoint" if args.step is None else f"no complete checkpoint of step {args.step}"
        raise ConfigError(f"there is {what} in {store.shown}.")
    return Saved(store, name)


def to_flat(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `Checkpoint`'s state with its parts at the top level, as in other programs. Raises `TransferError`."""
    if set(state) != {COUNTERS, "parts"} or COUNTERS in state["parts"]:
        raise TransferError("it was not saved by torchft_x.Checkpoint, so its parts are not known.")
    versions = {name: value for name, part in state["parts"].items() if (value := _versions(part))}
    counters = {**state[COUNTERS], _VERSIONS: json.dumps(versions)} if versions else state[COUNTERS]
    return {**state["parts"], COUNTERS: counters}


def from_flat(flat: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """Return a flat state as a `Checkpoint`'s state; `step` is for a state without its own. Raises `ConfigError`."""
    parts = {str(name): _with_numbers(part) for name, part in flat.items() if name != COUNTERS}
    counters = flat.get(COUNTERS)
    if isinstance(counters, dict) and _VERSIONS in counters:
        versions = json.loads(counters[_VERSIONS])
        parts = {name: _with_versions(part, versions.get(name)) for name, part in parts.items()}
        counters = {name: value for name, value in counters.items() if name != _VERSIONS}
    if step is not None or counters is None:
        if step is None:
            raise ConfigError("the state doesn't say how many steps it has behind it; give --step N.")
        counters = {"step": step, "batches_committed": 0, "committed_in": 0}
    return {COUNTERS: counters, "parts": parts}


def _versions(part: Any) -> dict[str, Any]:
    """Return the versions that a module's state dict carries beside its entries, by the names of its submodules.

    `load_state_dict` converts entries that have an older version, or none.
    """
    return dict(getattr(part, "_metadata", {}))


def _with_versions(part: Any, versions: dict[str, Any] | None) -> Any:
    if not versions or not isinstance(part, dict):
        return part
    result = OrderedDict(part)
    result._metadata = versions  # type: ignore[attr-defined]
    return result


def _with_numbers(part: Any) -> Any:
    """Return an optimizer's state keyed by parameter numbers, which are text in PyTorch's form."""
    if not isinstance(part, dict) or not {"state", "param_groups"} <= set(part) or not isinstance(part["state"], dict):
        return part
    numbered = {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in part["state"].items()}
    return {**part, "state": numbered}


# --- PyTorch's distributed checkpoint ---------------------------------------------------------------------------------


def write_dcp(flat: Mapping[str, Any], folder: Path) -> None:
    """Write a state as PyTorch's distributed checkpoint. Raises `ConfigError`."""
    dcp = _module("torch.distributed.checkpoint", "numpy")
    _new(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(dict(flat), storage_writer=dcp.FileSystemWriter(folder), no_dist=True)


def read_dcp(folder: Path) -> dict[str, Any]:
    """Read PyTorch's distributed checkpoint in a trusted folder: PyTorch unpickles its files. Raises `ConfigError`."""
    utils = _module("torch.distributed.checkpoint.format_utils", "numpy")
    if not (folder / ".metadata").is_file():
        raise ConfigError(f"{folder}: that is no distributed checkpoint of PyTorch; it has no .metadata.")
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = Path(temporary, "state.pt")
        utils.dcp_to_torch_save(folder, whole)
        state: dict[str, Any] = torch.load(whole, map_location="cpu", weights_only=True)
    return state


# --- safetensors ------------------------------------------------------------------------------------------------------


def write_safetensors(part: Any, file: Path, step: int) -> int:
    """Write a part's tensors, by names with dots, and return the number of values left out. Raises `ConfigError`."""
    library = _module("safetensors.torch", "safetensors")
    tensors: dict[str, torch.Tensor] = {}
    left_out = 0
    for path, value in _leaves(part, ""):
        if not isinstance(value, torch.Tensor):
            left_out += 1
            continue
        name = path.replace("/", ".")
        if name in tensors:
            raise ConfigError(f"two tensors would be called {name!r} in a safetensors file.")
        tensors[name] = value.detach().contiguous()
    _new(file)
    told = {"format": "pt", "step": str(step), _VERSIONS: json.dumps(_versions(part))}
    try:
        library.save_file(tensors, str(file), metadata=told)
    except (ValueError, KeyError, RuntimeError) as e:
        raise ConfigError(f"{file}: safetensors can't hold it ({str(e).splitlines()[0][:200]}).") from None
    return left_out


def read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file. Raises `ConfigError`."""
    library = _module("safetensors.torch", "safetensors")
    try:
        tensors: dict[str, torch.Tensor] = library.load_file(str(file))
        with library.safe_open(str(file), "pt") as opened:
            versions = json.loads((opened.metadata() or {}).get(_VERSIONS, "{}"))
    except Exception as e:  # safetensors raises errors of its own class
        raise ConfigError(f"{file}: it can't be read as safetensors ({str(e)[:200]}).") from None
    result: dict[str, torch.Tensor] = _with_versions(tensors, versions)
    return result


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    if items is None:
        yield path, value
        return
    for key, below in items:
        yield from _leaves(below, join_path(path, key))


def _module(name: str, package: str) -> Any:
    try:
        importlib.import_module(package)
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"this form needs the package {package}; pip install {package}.") from None


def _new(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{path} is there already; name a new one.")
    path.parent.mkdir(parents=True, exist_ok=True)

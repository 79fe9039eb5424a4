"""``torchft_x checkpoint``: list and verify the checkpoints below a URL, and convert them to forms of other programs."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.transfer.convert import formats
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import all_of, is_complete, newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.sealed import DamagedError
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store

_WAIT = 600.0  # seconds until the written shards of an import must be visible


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
        try:
            complete = is_complete(store, name)
        except DamagedError:
            print(f"step {name.step:>8}  damaged     {'':>13}  {'':>9}  {name}")
            continue
        if complete:
            manifest = Saved(store, name).manifest
            nbytes = sum(n for _, n in manifest.shards)
            ranks = "1 rank" if manifest.ranks == 1 else f"{manifest.ranks} ranks"
            print(f"step {name.step:>8}  complete    {nbytes / 1e6:>10,.1f} MB  {ranks:>9}  {name}")
        else:
            print(f"step {name.step:>8}  incomplete  {'':>13}  {'':>9}  {name}")
    if not found:
        print(f"no checkpoints in {store.shown}")


def _verify(args: argparse.Namespace) -> None:
    saved = _chosen(args)
    print(f"{saved.name}: {saved.verify() / 1e6:,.1f} MB are whole", flush=True)


def _export(args: argparse.Namespace) -> None:
    saved = _chosen(args)
    flat = formats.to_flat(saved.load())
    if args.format == "dcp":
        formats.write_dcp(flat, args.to)
        print(f"{saved.name}: written to {args.to}")
        return
    if args.part not in flat:
        known = ", ".join(sorted(set(flat) - {formats.COUNTERS}))
        raise ConfigError(f"there is no part {args.part!r}; --part names one of {known}.")
    left_out = formats.write_safetensors(flat[args.part], args.to, saved.name.step)
    more = f", without {left_out} values that are no tensors" if left_out else ""
    print(f"{saved.name}: {args.part} written to {args.to}{more}")


def _import(args: argparse.Namespace) -> None:
    store = Store(args.url)
    if not args.source.exists():
        raise ConfigError(f"{args.source} is not there.")
    flat: dict[str, Any] = (
        formats.read_dcp(args.source) if args.format == "dcp" else {args.part: formats.read_safetensors(args.source)}
    )
    state = formats.from_flat(flat, args.step)
    shard = freeze(state, step=state[formats.COUNTERS]["step"])
    name = names.name(shard.step, f"import-{secrets.token_hex(4)}")
    writer.write_shard(store, name, shard)
    writer.complete(store, name, shard, job=f"import-{secrets.token_hex(4)}", timeout=_WAIT)
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

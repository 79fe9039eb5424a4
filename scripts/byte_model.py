"""Model, data and arguments of the training scripts in this folder: a small transformer over the bytes of a text."""

from __future__ import annotations

import argparse
import glob
import math
import os
import random
import sysconfig
from collections.abc import Sequence

import fsspec
import torch
import torch.nn.functional as F
from torch import nn

from torchft_x import Checkpoint, ElasticLoader, Manager, describe_data, env, errors
from torchft_x.train import fault_tolerance

# ----------------------------------------------------------------------------------------------------------------------
# Arguments


def parse_args(
    argv: list[str] | None = None, parser: argparse.ArgumentParser | None = None, *, apart: bool = False
) -> argparse.Namespace:
    """Parse the arguments that all training scripts have, and torchtitan's --fault_tolerance.KEY and --config.

    `parser` holds further arguments of one script. `apart` is true if its groups don't average each step.
    """
    p = parser or argparse.ArgumentParser(description="Train a small byte-level transformer in replica groups.")
    p.add_argument("--steps", "--training.steps", type=int, default=200, help="committed steps to train")
    p.add_argument("--data", help="file, directory, glob or any fsspec URL (default: Python's own standard library)")
    p.add_argument("--data-mb", type=float, default=8.0, help="read at most this many megabytes of text")
    p.add_argument(
        "--mock-data", "--training.mock_data", "--training.mock-data", nargs="?", const=True, default=False,
        type=fault_tolerance.boolean, metavar="true", help="train on made-up text",
    )  # fmt: skip
    p.add_argument(
        "--batch-size", type=int, default=8, help="sequences of a micro batch, which the ranks of a group divide"
    )
    if not apart:
        p.add_argument(
            "--global-batch",
            type=int,
            help="sequences of a step over all groups, a multiple of --batch-size (default: --batch-size for each group)",
        )
        p.add_argument(
            "--data-policy",
            choices=("constant", "strict", "shrink"),
            help="what a step commits if a group is lost in it (docs/data.md); constant with --global-batch, else shrink",
        )
    p.add_argument("--seq-len", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3, help="highest learning rate; warm-up, then cosine to a tenth")
    p.add_argument("--warmup", type=int, default=20, help="steps of warm-up")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1, help="compute threads per process")
    p.add_argument(
        "--device", default="auto", help="auto: the accelerator that is there, else cpu; or cpu, cuda, xpu, cuda:1"
    )
    p.add_argument(
        "--process-group",
        default="auto",
        help="between the groups: gloo, nccl or xccl, or baby-gloo, ... in a child process; auto: the device's own, or "
        "gloo where ranks may share a device",
    )
    p.add_argument(
        "--compile",
        choices=("inductor", "aot_eager"),
        help="torch.compile's backend, of which aot_eager needs no C++ compiler; each start compiles anew",
    )
    p.add_argument(
        "--min-groups",
        type=int,
        default=1,
        help="commit only with this many groups or more (or the job's --min_replicas, if larger)",
    )
    p.add_argument(
        "--checkpoint",
        metavar="URL",
        help="fsspec URL of a folder to save to, and to resume from (docs/checkpoints.md)",
    )
    p.add_argument("--checkpoint-every", type=int, default=100, help="committed steps between two saves")
    p.add_argument("--log-every", type=int, default=10, help="committed steps between two lines of the log")
    p.add_argument(
        "--track",
        metavar="WHERE",
        help="tensorboard:FOLDER or wandb:PROJECT: numbers of each step, of each group as a run of its own",
    )
    args = fault_tolerance.parse_args(p, argv, apart=apart)
    for name in ("steps", "batch_size", "seq_len", "layers", "width", "heads", "threads", "log_every"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.checkpoint_every < 1:
        p.error(f"--checkpoint-every must be at least 1, not {args.checkpoint_every}")
    if args.width % args.heads:
        p.error(f"--width {args.width} can't be divided among --heads {args.heads}")
    if apart:
        args.global_batch = args.data_policy = None  # a batch for each group
    args.group = env.read(env.REPLICA_GROUP_ID, "0")
    args.min_groups = max(args.min_groups, args.ft.min_replica_size)
    if args.process_group == "auto" and "process_group" in args.given:
        args.process_group = args.ft.process_group
    timed = apart or "process_group_timeout_ms" in args.given
    args.timeout = args.ft.process_group_timeout_ms / 1000 if timed else None
    return args


# ----------------------------------------------------------------------------------------------------------------------
# Data: one long string of bytes


def load_bytes(url: str | None, limit: int) -> torch.Tensor:
    """Return at most `limit` bytes of text, files in sorted order, as uint8.

    Raise ConfigError naming `url` if it can't be read or matches no file.
    """
    if url is None:
        url = os.path.join(glob.escape(sysconfig.get_path("stdlib")), "*.py")
    text = bytearray()
    try:
        fs, path = fsspec.core.url_to_fs(url)
        names = fs.find(path) if fs.isdir(path) else [name for name in fs.glob(path) if fs.isfile(name)]
        for name in sorted(names):
            if len(text) >= limit:
                break
            with fs.open(name, "rb") as f:
                text += f.read(limit - len(text))
    except (OSError, ValueError, ImportError) as e:
        raise errors.ConfigError(f"--data {url}: it can't be read ({e}).") from None
    if not names:
        raise errors.ConfigError(f"--data {url}: no such file, directory or match.")
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def made_up(seed: int) -> torch.Tensor:
    """Return a text that can be learned, as uint8: words of a small made-up language, equal in all groups."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(200)]
    text = " ".join(rng.choices(words, k=50_000)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def load_data(args: argparse.Namespace) -> torch.Tensor:
    """Return the text that the arguments name, as uint8. Raise ConfigError if it is too short for one sequence."""
    data = made_up(args.seed) if args.mock_data else load_bytes(args.data, int(args.data_mb * 1e6))
    if len(data) <= args.seq_len:
        raise errors.ConfigError(f"--data has {len(data)} bytes; a sequence needs more than --seq-len {args.seq_len}.")
    return data


class Sequences:
    """Data set of the sequences of a text, one behind the other. Sample i begins at byte i * seq_len."""

    def __init__(self, text: torch.Tensor, seq_len: int) -> None:
        self.text, self.seq_len = text, seq_len

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.seq_len

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, int64 [seq]."""
        row = self.text[i * self.seq_len : (i + 1) * self.seq_len + 1].long()
        return row[:-1], row[1:]


def make_loader(
    manager: Manager, args: argparse.Namespace, text: torch.Tensor, *, rank: int = 0, ranks: int = 1
) -> ElasticLoader:
    """Return the loader of a training whose groups average each step. `ranks` ranks of a group divide each micro batch."""
    return ElasticLoader(
        manager,
        Sequences(text, args.seq_len),
        micro_batch=args.batch_size,
        global_batch=args.global_batch,
        policy=args.data_policy or ("shrink" if args.global_batch is None else "constant"),
        seed=args.seed,
        digest=describe_data(text).digest,
        rank=rank,
        ranks=ranks,
    )


def get_batch(
    data: torch.Tensor, args: argparse.Namespace, step: int, stream: int | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, int64 [batch, seq]: a function of (seed, committed step, stream) and of nothing else.

    A dropped step is run again under its number, so that its samples are not skipped. Each participant draws from a
    stream of its own, so that no two participants train on the same samples.
    """
    rng = random.Random(f"{args.seed}/{step}/{stream}")
    starts = [rng.randrange(len(data) - args.seq_len) for _ in range(args.batch_size)]
    rows = torch.stack([data[i : i + args.seq_len + 1] for i in starts]).long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


# ----------------------------------------------------------------------------------------------------------------------
# Model: a plain pre-norm transformer


class Block(nn.Module):
    """Transformer block: causal self-attention, then an MLP, each on normalised inputs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Transformer over bytes, whose forward pass returns the loss."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, args.width)
        self.place = nn.Embedding(args.seq_len, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, 256, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy (nats per byte) of targets `y` after inputs `x`, both int64 [batch, seq]."""
        h = self.byte(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)


def set_learning_rate(args: argparse.Namespace, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Set the learning rate of the step after `step` committed steps: warm-up, then a cosine to a tenth."""
    if step < args.warmup:
        rate = args.lr * (step + 1) / args.warmup
    else:
        done = (step - args.warmup) / max(1, args.steps - args.warmup)
        rate = args.lr * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done)))
    for group in optimizer.param_groups:
        group["lr"] = rate


# ----------------------------------------------------------------------------------------------------------------------
# The job


def declare(manager: Manager, args: argparse.Namespace, data: torch.Tensor, *, but: Sequence[str] = ()) -> None:
    """Declare the data and the arguments that must be equal in all groups, so that the copies don't drift apart."""
    name = "made up" if args.mock_data else args.data or "Python's library"
    manager.declare("data set", *describe_data(data, name=name))
    shaping = [n for n in ("steps", "batch_size", "lr", "warmup", "seed") if n not in but]
    manager.declare("command line", "what shapes the training", [f"{n} {getattr(args, n)}" for n in shaping])


def resume(args: argparse.Namespace, manager: Manager, parts: dict) -> Checkpoint | None:
    """Return the checkpoint of --checkpoint, after loading its newest state into the parts and the Manager."""
    if not args.checkpoint:
        return None
    checkpoint = Checkpoint(manager, args.checkpoint, parts, every=args.checkpoint_every)
    if checkpoint.resume() and manager.name.endswith("/0"):
        print(f"group {manager.name[:-2]}: resumed from {checkpoint.url} at step {manager.current_step()}", flush=True)
    return checkpoint


def print_device(device: torch.device, pg: object) -> None:
    """Print this rank's accelerator, if any, and the process group between the groups."""
    if device.type != "cpu":
        name = torch.get_device_module(device.type).get_device_name(device)
        print(f"{device} ({name}), {type(pg).__name__} between the groups", flush=True)

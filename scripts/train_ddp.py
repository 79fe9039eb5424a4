"""Train a small byte-level transformer with several replica groups, any of which may die at any time.

    torchx run ./components.py:ddp --replicas 2 --script scripts/train_ddp.py -- --steps 200 --data PATH_OR_URL

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    torchft_x lighthouse --min_replicas 1 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 0 --groups 2 -- scripts/train_ddp.py
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 1 --groups 2 -- scripts/train_ddp.py

A group of several workers computes the same batch in each of them: this script is about whole copies of a model.
torchtitan's --fault_tolerance.KEY, --training.steps, --training.mock_data and a TOML file with them (--config) work, too.
It trains on the CUDA or XPU device that is there, else on the CPU (--device); on a GPU it was not run yet.
Read it from top to bottom. What makes it fault tolerant: every quantity that steers training (data, learning rate, log,
checkpoint) is a function of the number of *committed* steps. docs/write_a_script.md says how to do the same to your own.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import math
import os
import queue
import random
import re
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable

import fsspec

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch says so on machines without NumPy

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from torchft_x import (  # noqa: E402
    Checkpoint,
    DistributedDataParallel,
    Leaving,
    Manager,
    Optimizer,
    defer_compiler_import,
    describe_data,
    env,
    errors,
    local_device,
    observe,
    process_group_for,
)
from torchft_x.observe.export import on_step  # noqa: E402
from torchft_x.train import fault_tolerance  # noqa: E402

# Arguments that must be alike in all groups, besides the model's and the data: else the copies would drift apart.
SHAPING = ("steps", "batch_size", "lr", "warmup", "seed")

# ----------------------------------------------------------------------------------------------------------------------
# Arguments


TRAINING = ("steps", "mock_data")  # keys of [training] that mean something here
EACH_STEP = ("enable", "process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size")
"""Keys of [fault_tolerance] for groups that average each step; the others are about groups that train apart."""


def parse_args(
    argv: list[str] | None = None, parser: argparse.ArgumentParser | None = None, *, apart: bool = False
) -> argparse.Namespace:
    """`parser`: one that has arguments already, for a script with more of them (train_hsdp.py). `apart`: its groups don't
    average each step (train_diloco.py). Raises ConfigError for a key of --config, or of --SECTION.KEY, that can't be."""
    known = {fault_tolerance.SECTION: fault_tolerance.KEYS, "training": TRAINING}
    flags, rest = fault_tolerance.take_flags(sys.argv[1:] if argv is None else argv, known)
    p = parser or argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--config", "--job.config_file", metavar="FILE", help="TOML with [fault_tolerance] and [training]")
    p.add_argument("--mock-data", action="store_true", help="train on made-up text (--training.mock_data)")
    p.add_argument("--steps", type=int, default=200, help="committed steps to train")
    p.add_argument(
        "--until", metavar="FILE", help="for trials: stop earlier, at the commit that this file names once it is there"
    )
    p.add_argument("--data", help="file, directory, glob or any fsspec URL (default: Python's own standard library)")
    p.add_argument("--data-mb", type=float, default=8.0, help="read at most this many megabytes of text")
    p.add_argument("--batch-size", type=int, default=8, help="sequences per group and step")
    p.add_argument("--seq-len", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3, help="highest learning rate; warm-up, then cosine to a tenth")
    p.add_argument("--warmup", type=int, default=20, help="steps of warm-up")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument(
        "--device", default="auto", help="auto: the accelerator that is there, else cpu; or cpu, cuda, xpu, cuda:1"
    )
    p.add_argument("--threads", type=int, default=1, help="compute threads per process")
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
    p.add_argument("--dump-params", metavar="DIR", help="write all parameters after every commit, for check_params.py")
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument(
        "--track",
        metavar="WHERE",
        help="tensorboard:FOLDER or wandb:PROJECT: numbers of each step, of each group as a run of its own",
    )
    p.add_argument(
        "--process-group",
        default="auto",
        help="between the groups: gloo, nccl or xccl; auto: the device's own, or gloo where ranks may share a device",
    )
    p.add_argument(
        "--compile",
        choices=("inductor", "aot_eager"),
        help="torch.compile's backend, of which aot_eager needs no C++ compiler; each life compiles anew",
    )
    p.add_argument("--pace", type=float, default=0.0, help="seconds; no step is shorter (to watch a small model)")
    args = p.parse_args(rest)
    read_sections(args, flags, apart)
    for name in (
        "steps",
        "batch_size",
        "seq_len",
        "layers",
        "width",
        "heads",
        "threads",
        "log_every",
        "checkpoint_every",
    ):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    if args.track and not re.fullmatch("(tensorboard|wandb):.+", args.track):
        p.error(f"--track {args.track} is neither tensorboard:FOLDER nor wandb:PROJECT")
    if args.width % args.heads:
        p.error(f"--width {args.width} can't be divided among --heads {args.heads}")
    return args


def read_sections(args: argparse.Namespace, flags: dict[str, dict[str, str]], apart: bool) -> None:
    """Add [fault_tolerance] to the arguments, as `ft`, and what [training] says. Flags beat the file --config."""
    file = fault_tolerance.read_toml(args.config) if args.config else {}
    told = {**file.get(fault_tolerance.SECTION, {}), **flags[fault_tolerance.SECTION]}
    defaults = {} if args.config else {"enable": True, **({"semi_sync_method": "diloco"} if apart else {})}
    args.ft = fault_tolerance.resolve({**defaults, **file.get(fault_tolerance.SECTION, {})}, flags["fault_tolerance"])
    training = {**file.get("training", {}), **flags["training"]}
    unused = [f"[{section}]" for section in file if section not in flags]
    unused += [f"{key} of [training]" for key in training if key not in TRAINING]
    if not apart:
        if args.ft.semi_sync_method is not None:
            raise errors.ConfigError(
                f"fault_tolerance.semi_sync_method is {args.ft.semi_sync_method}, for groups that train apart: that is "
                "train_diloco.py; here they average each step, so leave the key out, or write none."
            )
        for key in (k for k in flags[fault_tolerance.SECTION] if k not in (*EACH_STEP, "semi_sync_method")):
            raise errors.ConfigError(
                f"--fault_tolerance.{key} is about groups that train apart: train_diloco.py takes it; leave it out here."
            )
        unused += [f"{k} of [fault_tolerance]" for k in told if k not in (*EACH_STEP, "semi_sync_method")]
    if not args.ft.enable:
        raise errors.ConfigError("[fault_tolerance] doesn't say enable = true: say so, or --fault_tolerance.enable.")
    for name in unused:
        print(f"{os.path.basename(sys.argv[0])}: {args.config}: {name} means nothing to this script", file=sys.stderr)
    if "steps" in training:
        try:
            args.steps = int(training["steps"])
        except (TypeError, ValueError):
            args.steps = 0
        if args.steps < 1:
            raise errors.ConfigError(f"training.steps is {training['steps']!r}; it must be a number of 1 or more.")
    args.mock_data = args.mock_data or str(training.get("mock_data", False)).lower() == "true"
    args.min_groups = max(args.min_groups, args.ft.min_replica_size)
    if args.process_group == "auto" and "process_group" in told:
        args.process_group = args.ft.process_group
    args.timeout = args.ft.process_group_timeout_ms / 1000 if apart or "process_group_timeout_ms" in told else None
    # What only the flags say of the job, said to all as a launcher says it.
    args.place = {env.REPLICA_GROUP_ID: args.ft.replica_id} if "replica_id" in told else {}
    args.place |= {env.NUM_REPLICA_GROUPS: args.ft.group_size} if args.ft.group_size else {}


def take_place(args: argparse.Namespace) -> tuple[str, int]:
    """Return the group's id and this process's rank in it."""
    for name, value in args.place.items():
        os.environ.setdefault(name, str(value))
    return env.read(env.REPLICA_GROUP_ID, "0"), env.read_int("RANK", 0)


# ----------------------------------------------------------------------------------------------------------------------
# Data: one long string of bytes


def load_bytes(url: str | None, limit: int) -> torch.Tensor:
    """At most `limit` bytes of text, files in sorted order, as a uint8 tensor. Raises ConfigError naming `url`."""
    if url is None:
        url = os.path.join(glob.escape(sysconfig.get_path("stdlib")), "*.py")
    try:
        fs, path = fsspec.core.url_to_fs(url)
        names = fs.find(path) if fs.isdir(path) else [name for name in fs.glob(path) if fs.isfile(name)]
        if not names:
            raise errors.ConfigError(f"--data {url}: no such file, directory or match.")
        text = bytearray()
        for name in sorted(names):
            if len(text) >= limit:
                break
            with fs.open(name, "rb") as f:
                text += f.read(limit - len(text))
    except (OSError, ValueError, ImportError) as e:  # ConfigError is a ValueError too: it says enough already
        if isinstance(e, errors.ConfigError):
            raise
        raise errors.ConfigError(f"--data {url}: it can't be read ({e}).") from None
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def made_up(args: argparse.Namespace) -> torch.Tensor:
    """Text that can be learned: words of a small made-up language, the same in all groups."""
    rng = random.Random(args.seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(200)]
    text = " ".join(rng.choices(words, k=50_000)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def name_of_data(args: argparse.Namespace) -> str:
    return "made up" if args.mock_data else args.data or "Python's library"


def load_data(args: argparse.Namespace) -> torch.Tensor:
    """What the arguments name. Raises ConfigError if that isn't enough for one sequence."""
    data = made_up(args) if args.mock_data else load_bytes(args.data, int(args.data_mb * 1e6))
    if len(data) <= args.seq_len:
        raise errors.ConfigError(f"--data has {len(data)} bytes; a sequence needs more than --seq-len {args.seq_len}.")
    return data


def get_batch(
    data: torch.Tensor, args: argparse.Namespace, step: int, participant: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64 [batch, seq]: a function of (seed, committed step, participant) and of nothing else.

    A step that is dropped is run again under the same number, so its samples are not skipped; participants draw
    from streams of their own, so no two of them train on the same samples.
    """
    rng = random.Random(f"{args.seed}/{step}/{participant}")
    starts = [rng.randrange(len(data) - args.seq_len) for _ in range(args.batch_size)]
    rows = torch.stack([data[i : i + args.seq_len + 1] for i in starts]).long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


# ----------------------------------------------------------------------------------------------------------------------
# Model: a plain pre-norm transformer over bytes


class Block(nn.Module):
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
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, args.width)
        self.place = nn.Embedding(args.seq_len, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, 256, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy (nats per byte) of targets `y` after inputs `x`, both int64 [batch, seq]."""
        h = self.byte(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def is_told_to_stop(args: argparse.Namespace, commits: int) -> bool:
    """Whether the file --until is there and names no later commit. All ranks agree if it names one that none has reached."""
    if not args.until or not os.path.exists(args.until):
        return False
    with open(args.until) as f:
        return commits >= int(f.read())


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Of the step with `step` commits before it."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done)))


# ----------------------------------------------------------------------------------------------------------------------
# Files: the dumps for the outside checker


class Dumper:
    """Writes ``g{group}-r{rank}-a{attempt}-s{step}.bin``: one line of JSON, then every parameter's bytes in order."""

    def __init__(self, folder: str, module: nn.Module, group: str, rank: int, attempt: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.name = os.path.join(folder, f"g{group}-r{rank}-a{attempt}")
        self.header = {"group": group, "rank": rank, "attempt": attempt}
        self.params = [p.detach() for p in module.parameters()]
        self.bytes = bytearray(sum(p.numel() * p.element_size() for p in self.params))
        self.flat = torch.frombuffer(self.bytes, dtype=torch.uint8)  # the same memory as self.bytes

    def write(self, step: int, **fields: object) -> None:
        at = 0
        for p in self.params:
            raw = p.reshape(-1).view(torch.uint8)
            self.flat[at : at + raw.numel()].copy_(raw)
            at += raw.numel()
        header = {**self.header, "step": step, **fields, "digest": hashlib.sha256(self.bytes).hexdigest()}
        path = f"{self.name}-s{step:06d}.bin"
        with open(path + ".part", "wb") as f:
            f.write(json.dumps(header).encode() + b"\n")
            f.write(self.bytes)
        os.rename(path + ".part", path)  # a reader sees the whole file or none


# ----------------------------------------------------------------------------------------------------------------------
# What a person sees


def track(where: str, group: str) -> None:
    """Give the numbers of each committed step to a tool that draws them."""
    tool, _, name = where.partition(":")
    try:
        if tool == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(os.path.join(name, f"group-{group}"))
            on_step(lambda step, numbers: [writer.add_scalar(key, value, step) for key, value in numbers.items()])
        else:
            import wandb

            wandb.init(project=name, name=f"group-{group}")
            on_step(lambda step, numbers: wandb.log(dict(numbers), step=step))
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"--track {where}: {e}; `pip install {tool}` first.") from None


class Voice:
    """Prints the log lines, in one group for all: the lowest that takes part. (Who is lost and who is back is told by the
    Manager.)"""

    def __init__(self, args: argparse.Namespace, group: str, rank: int) -> None:
        self.args, self.rank = args, rank
        self.story = observe.Story(group)
        # Everything that happens to this process arrives here as events, from any thread (docs/events.md).
        self.happened: queue.SimpleQueue[dict] = queue.SimpleQueue()
        observe.subscribe(self.happened.put)
        if args.track and rank == 0:
            track(args.track, group)
        self.tokens, self.since = 0, time.monotonic()  # of the whole job, since the last log line
        self.participants = 0  # of the last commit; after a failure the Manager's number is that of the next step

    @property
    def speaks(self) -> bool:
        return self.rank == 0 and self.story.speaks

    def catch_up(self) -> None:
        while not self.happened.empty():
            event = self.happened.get()
            if event["event"] == "commit":
                self.participants = event["participants"]
            self.story.tell(event)

    def log(self, manager: Manager, step: int, loss: torch.Tensor, groups: int, batches: int = 1) -> None:
        """`batches`: of one group in each step."""
        self.tokens += groups * batches * self.args.batch_size * self.args.seq_len
        if step % self.args.log_every and step != self.args.steps:
            return
        rate = self.tokens / (time.monotonic() - self.since)
        self.tokens, self.since = 0, time.monotonic()
        if self.speaks:
            print(f"step {step:>5} | loss {loss.item():.4f} | groups {groups} | {rate:,.0f} tokens/s", flush=True)
            manager.log(loss=loss.item())  # for `torchft_x report`


# ----------------------------------------------------------------------------------------------------------------------
# Training


def train(args: argparse.Namespace) -> None:
    group, rank = take_place(args)
    attempt = env.read_int(env.ATTEMPT, 0)  # how often this group was started before
    defer_compiler_import()  # half of a start, and most trainings compile nothing
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = local_device(args.device)
    pg = process_group_for(device, args.process_group)  # says at once what this machine lacks

    data = load_data(args)
    voice = Voice(args, group, rank)
    model = Transformer(args).to(device)  # made on the CPU: the same weights wherever it goes
    if args.compile:
        model.compile(backend=args.compile)  # in place: it trains with groups that don't compile
    adamw = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    healed = False  # was the state loaded since the last commit?
    drawn = 0  # batches this process has drawn; check_params.py counts those that were thrown away

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optim": adamw.state_dict()}

    def load_state_dict(state: dict) -> None:
        nonlocal healed
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optim"])
        healed = True

    def set_lr(step: int) -> None:
        # The rate of the coming step is part of the optimizer's state, so a group that heals gets it with the rest.
        for param_group in adamw.param_groups:
            param_group["lr"] = learning_rate(args, step)

    manager = Manager(
        pg=pg,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=args.min_groups,
        timeout=args.timeout,
        replica_id=group,
    )
    # Also tells the others the model: a group with another one is refused.
    ddp = DistributedDataParallel(manager, model)
    manager.declare("data set", *describe_data(data, name=name_of_data(args)))
    manager.declare("command line", "what shapes the training", [f"{n} {getattr(args, n)}" for n in SHAPING])
    manager.declare("process group", type(pg).__name__)
    optimizer = Optimizer(manager, adamw)
    dumper = Dumper(args.dump_params, model, group, rank, attempt) if args.dump_params else None

    checkpoint = saves_to(args, manager, {"model": model, "optim": adamw})
    set_lr(manager.current_step())
    say_device(device, pg, group, rank)

    with Leaving(manager, checkpoint) as leaving:
        while manager.current_step() < args.steps and not leaving.told():
            if is_told_to_stop(args, manager.current_step()):
                break
            began = time.monotonic()
            optimizer.zero_grad()  # asks who takes part in this step
            participant = manager.participating_rank() or 0  # a healing group contributes zeros, whatever it computes
            step = manager.current_step()  # the same in all groups that take part
            drawn += 1
            loss = ddp(*(t.to(device) for t in get_batch(data, args, step, participant)))
            loss.backward()  # averages the gradients over the groups while it runs
            optimizer.step()  # ... if all of that worked; otherwise the step is dropped: nothing changes, it is run again

            time.sleep(max(0.0, began + args.pace - time.monotonic()))
            voice.catch_up()
            if not optimizer.committed:
                continue
            step = manager.current_step()
            set_lr(step)
            if dumper:
                dumper.write(step, t=time.time(), committed_in=voice.story.committed_in, healed=healed, drawn=drawn)
            healed = False
            voice.log(manager, step, loss, manager.num_participants())
            if checkpoint:
                checkpoint.step()  # one group saves, beside the training

    if voice.speaks:
        print(observe.summary(voice.story, env.read(env.RUN_DIR)), flush=True)


def saves_to(args: argparse.Namespace, manager: Manager, parts: dict) -> Checkpoint | None:
    """What --checkpoint asks for; the parts and the Manager go on from the newest one there, if there is any."""
    if not args.checkpoint:
        return None
    checkpoint = Checkpoint(manager, args.checkpoint, parts, every=args.checkpoint_every)
    if checkpoint.resume() and manager.name.endswith("/0"):
        print(f"group {manager.name[:-2]}: resumed from {checkpoint.url} at step {manager.current_step()}", flush=True)
    return checkpoint


def say_device(device: torch.device, pg: object, group: str, rank: int) -> None:
    """On an accelerator: which one, and what connects the groups."""
    if device.type != "cpu":
        name = torch.get_device_module(device.type).get_device_name(device)
        print(f"group {group}, rank {rank}: {device} ({name}), {type(pg).__name__} between the groups", flush=True)


def exit_code(train: Callable[[], None]) -> int:
    """Of this program."""
    try:
        train()
    except errors.UnsavedError as e:
        print(f"{os.path.basename(sys.argv[0])}: {e}", file=sys.stderr)
        return os.EX_CANTCREAT  # the supervisor doesn't train it all again for that
    except errors.TorchftXError as e:  # one sentence says what to do; a traceback would hide it
        print(f"{os.path.basename(sys.argv[0])}: {e}", file=sys.stderr)
        # 2: a mistake in what we were given, or refused by the others: trying again would end the same way
        return 2 if isinstance(e, (errors.ConfigError, errors.RefusedError)) else 1
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(parse_args())))

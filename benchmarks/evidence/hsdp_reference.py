"""An independent reference for scripts/train_hsdp.py: one process, a whole model, plain torch, every rank's batches.

    python -m benchmarks.evidence.hsdp_reference DUMPS [--ranks N] -- ARG...        (ARG... as the trial was given them)

DUMPS is the folder that ``benchmarks/trial/hsdp.py --dump-params DUMPS`` wrote. The dumps' headers have the position in
the data after each step. This program trains on the samples between two positions, each once, and compares the loss of
each rank's micro batches. Where all ranks of a group have written a step, it also compares their shards, put together.
It prints one line of JSON (`Result`). The exit code is 0 if all is within NOISE, 1 if not, and 2 if the dumps can't be
used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.trial.common import split_flags
from torchft_x.core.data.permutation import permute

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import byte_model  # noqa: E402

# Bound of the rounding errors: float32 sums in another order, over hundreds of steps of AdamW. A batch that is missing
# or counted twice makes a difference of 0.001 and more.
NOISE = 1e-4


@dataclass(frozen=True)
class Dump:
    """One dump of a rank: the fields of its header."""

    group: str
    rank: int
    step: int  # after the commit
    position: str  # `DataState` as JSON, after the commit
    micros: list[list[int]]  # indices of the samples of each micro batch that counted
    losses: list[float]  # their losses
    path: Path

    @property
    def body(self) -> bytes:
        """Bytes of the parameters, read at each access, since those of all dumps may exceed the memory."""
        return self.path.read_bytes().partition(b"\n")[2]


@dataclass(frozen=True)
class Result:
    """Result of the comparison."""

    steps: int
    losses: int  # number of compared losses
    loss_error: float  # largest difference of a loss
    wholes: int  # number of whole models that were put together and compared
    value_error: float  # largest difference of a parameter


def read(folder: Path) -> dict[int, list[Dump]]:
    """Return the dumps of a folder by step. Raise ValueError if there is none, or a header lacks the data."""
    by_step: dict[int, list[Dump]] = defaultdict(list)
    for path in sorted(folder.glob("*.bin")):
        with path.open("rb") as f:
            h = json.loads(f.readline())
        try:
            d = Dump(h["group"], h["rank"], h["step"], h["position"], h["micros"], h["losses"], path)
        except KeyError as e:
            raise ValueError(f"{path}: its header lacks {e}; only dumps of benchmarks/trial have the data") from None
        by_step[d.step].append(d)
    if not by_step:
        raise ValueError(
            f"{folder} holds no dumps; run benchmarks/trial/hsdp.py with --dump-params, and keep them (--keep)"
        )
    return by_step


def trained(before: str | None, after: str) -> list[int]:
    """Return the indices of the samples that a step trained between these positions, each an index of the data set.

    `before` is None at the first step. All samples of a step have the same weight.
    """
    _, seed, length, _, epoch, cursor, debt, _ = json.loads(after)
    old_epoch, old_cursor, old_debt = json.loads(before)[4:7] if before is not None else (0, 0, [])
    samples = [(at // length, at % length) for at in range(old_epoch * length + old_cursor, epoch * length + cursor)]
    owed = {(e, i) for e, start, stop in debt for i in range(start, stop)}
    due = [(e, i) for e, start, stop in old_debt for i in range(start, stop)] + samples
    return [permute(i, length, seed, e) for e, i in due if (e, i) not in owed]


def compare(folder: Path, argv: list[str], ranks: int = 2, later: tuple[Path, int] | None = None) -> Result:
    """Compute all steps of a job, and compare them with its dumps.

    `later` holds the folder of a job that went on from the first one's checkpoint, and its number of ranks in a group.
    Raise ValueError if a step has no dump.
    """
    args = byte_model.parse_args(split_flags(argv)[1])
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = byte_model.load_data(args)
    model = byte_model.Transformer(args)
    adamw = byte_model.make_optimizer(args, model)
    by_step, ranks_at = read(folder), defaultdict(lambda: ranks)
    if later is not None:
        more = read(later[0])
        by_step.update(more)
        ranks_at.update(dict.fromkeys(more, later[1]))
    if missing := set(range(1, max(by_step) + 1)) - by_step.keys():
        raise ValueError(f"no dump of step {min(missing)} in {folder}: every step is needed")
    samples = byte_model.Sequences(data, args.seq_len)

    def batch(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = zip(*(samples[i] for i in indices), strict=True)
        return torch.stack(x), torch.stack(y)

    before: str | None = None
    losses, wholes, loss_error, value_error = 0, 0, 0.0, 0.0
    for step in range(max(by_step)):
        byte_model.set_learning_rate(args, adamw, step)
        adamw.zero_grad()
        dumps, ranks = by_step[step + 1], ranks_at[step + 1]
        positions = {d.position for d in dumps}
        if len(positions) > 1:
            raise ValueError(f"step {step + 1}: the groups stand at different positions in the data: {positions}")
        after = positions.pop()
        with torch.no_grad():
            for d in dumps:
                for micro, loss in zip(d.micros, d.losses, strict=True):
                    losses += 1
                    loss_error = max(loss_error, abs(loss - model(*batch(micro)).item()))
        model(*batch(trained(before, after))).backward()
        adamw.step()
        before = after
        for group in {d.group for d in dumps}:
            parts = {d.rank: d for d in dumps if d.group == group}
            if len(parts) == ranks:
                wholes += 1
                value_error = max(value_error, difference(model, [parts[r].body for r in range(ranks)]))
    return Result(max(by_step), losses, loss_error, wholes, value_error)


def difference(model: torch.nn.Module, bodies: list[bytes]) -> float:
    """Return the largest difference between the model and the ranks' shards: rows of each parameter, by torch.chunk."""
    at = [0] * len(bodies)
    worst = 0.0
    for p in model.parameters():
        for r, rows in enumerate(p.detach().chunk(len(bodies))):
            n = rows.numel() * 4
            held = torch.frombuffer(bytearray(bodies[r][at[r] : at[r] + n]), dtype=torch.float32).view(rows.shape)
            at[r] += n
            worst = max(worst, (held - rows).abs().max().item())
    assert at == [len(b) for b in bodies]
    return worst


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage="%(prog)s DUMPS [--ranks N] -- ARG...")
    p.add_argument("folder", metavar="DUMPS", type=Path)
    p.add_argument("--ranks", type=int, default=2, help="of a group")
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)  # argparse would reject the words after it
    args = p.parse_args(words[:end])
    try:
        result = compare(args.folder, words[end + 1 :], args.ranks)
    except (OSError, ValueError) as e:
        print(f"hsdp_reference.py: {e}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(result)))
    return 0 if max(result.loss_error, result.value_error) < NOISE else 1


if __name__ == "__main__":
    sys.exit(main())

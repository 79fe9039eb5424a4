"""The ways in which a trainer's group can be late: it hangs, is slow, or does other work.

The last rank of group 1 is late, once, when all groups have committed `AFTER` steps together; it then writes ``L t``
into its record. The Pythons of both libraries run this module.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOR_EVER = 1e9
AFTER = 30


@dataclass(frozen=True)
class Kind:
    """A way to be late."""

    words: str
    place: str
    """Place of the delay: ``loader``, ``worker`` (a process of the data loader), ``backward``, ``between`` (two steps),
    ``step`` (each one), or ``mixed`` (see `Mixed`)."""
    seconds: float = FOR_EVER
    """Duration of the delay. For ``step``, the factor by which its steps are longer than the others'."""
    ranks: int = 1
    """Number of ranks of each group."""


KINDS = {
    "thread": Kind("the training thread hangs", "loader"),
    "rank": Kind("one rank of two hangs", "loader", ranks=2),
    "worker": Kind("a data loader's worker hangs", "worker"),
    "backward": Kind("backward hangs", "backward"),
    "evaluation": Kind("evaluates for 12 s, unannounced", "between", 12.0),
    "slow3": Kind("steps take 3 times as long", "step", 3.0),
    "slow30": Kind("steps take 30 times as long", "step", 30.0),
    "mixed": Kind("all evaluate, save, compile, unannounced", "mixed", 0.0),
}


class Mixed:
    """Unannounced pauses of ordinary jobs, at random in each group.

    One step of ten takes ten times as long. One of 150 is followed by 3 to 12 s of evaluation, one of 150 by a
    checkpoint that is forced to the disk, and one of 400 by a compilation.

    Args:
        compiles: compiles a model, which takes seconds.
        saves: writes a checkpoint to the given file.
    """

    def __init__(self, group: str, compiles: Callable[[], None], saves: Callable[[Path], None], folder: Path) -> None:
        self._random = random.Random(f"{group} {os.getpid()}")
        self._compiles = compiles
        self._saves = saves
        self._file = folder / f"saved-{os.getpid()}"

    def step(self, pace: float) -> float:
        """Return the seconds that this step takes longer than `pace`."""
        return 9 * pace if self._random.random() < 0.1 else 0.0

    def between(self) -> str:
        """Pause between two steps with some probability, and return the name of the pause, or an empty string."""
        dice = self._random.random()
        if dice < 1 / 150:
            until = time.monotonic() + self._random.uniform(3.0, 12.0)
            while time.monotonic() < until:  # a slow evaluation: some computing, much waiting for its data
                sum(range(20_000))
                time.sleep(0.05)
            return "evaluation"
        if dice < 2 / 150:
            self._saves(self._file)
            return "checkpoint"
        if dice < 2 / 150 + 1 / 400:
            self._compiles()
            return "compilation"
        return ""


class Lateness:
    """Lateness of this process, which happens in the first attempt of its group only.

    Args:
        folder: holds the file whose existence makes a worker of the data loader hang.
        log: writes a line of the record.
    """

    def __init__(self, kind: str, group: str, folder: Path, log: Callable[[str], None]) -> None:
        self.kind = KINDS[kind]
        last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        first = '"number": 0' in os.environ["TORCHFT_X_ATTEMPT"] if "TORCHFT_X_ATTEMPT" in os.environ else not again
        self._chosen = group == "1" and last and first
        self.flag = folder / f"late-{os.getpid()}"
        self._log = log
        self._together = 0  # steps that all groups have committed
        self._began = False

    def committed(self, groups: int) -> None:
        """Count a step that so many groups committed."""
        self._together += groups == int(os.environ["NUM_REPLICA_GROUPS"])

    def at(self, place: str, pace: float) -> None:
        """Be late here, if this is the place and it is time."""
        if not self._chosen or place != self.kind.place or self._together < AFTER:
            return
        if self._began and place != "step":
            return
        if not self._began:
            self._began = True
            self._log("L")
        if place == "step":
            time.sleep(pace * (self.kind.seconds - 1))
        elif place == "worker":
            self.flag.touch()
        else:
            time.sleep(self.kind.seconds)

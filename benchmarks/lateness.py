"""The ways in which the trainer's group can be late: it hangs, or is slow. Run by both libraries' Pythons.

The last rank of group 1 is the one, once, when all groups have committed `AFTER` steps together; its log has ``L t`` then.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOR_EVER = 1e9
AFTER = 30


@dataclass(frozen=True)
class Kind:
    words: str
    place: str
    """``loader``, ``worker`` (a process of the data loader), ``backward``, ``between`` (two steps), ``step`` (each one)."""
    seconds: float = FOR_EVER
    """How long; of ``step``, how many times as long as the others' steps."""
    ranks: int = 1
    """Of each group."""


KINDS = {
    "thread": Kind("the training thread hangs", "loader"),
    "rank": Kind("one rank of two hangs", "loader", ranks=2),
    "worker": Kind("a data loader's worker hangs", "worker"),
    "backward": Kind("backward hangs", "backward"),
    "evaluation": Kind("evaluates for 12 s, unannounced", "between", 12.0),
    "slow3": Kind("steps take 3 times as long", "step", 3.0),
    "slow30": Kind("steps take 30 times as long", "step", 30.0),
}


class Lateness:
    """Of this process, in its first life.

    Args:
        folder: for the file that tells a worker of the data loader that it is time.
        log: the record's writer.
    """

    def __init__(self, kind: str, group: str, folder: Path, log: Callable[[str], None]) -> None:
        self.kind = KINDS[kind]
        last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        first = os.environ.get("TORCHFT_X_ATTEMPT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == "0"
        self._chosen = group == "1" and last and first
        self.flag = folder / f"late-{os.getpid()}"
        self._log = log
        self._together = 0  # steps that all groups have committed
        self._began = False

    def committed(self, groups: int) -> None:
        """A step, with so many groups."""
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

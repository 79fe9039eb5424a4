"""A newcomer's first step, made before it asks for a quorum, and dropped.

What takes long in it (compiling, the data loader's start, memory that is touched first, libraries that initialise) needs no
other group, and whoever asks first and computes then holds all of them up for as long: they train in one quorum with it. Its
gradients are worth nothing in any case, since it computes them on weights that it is about to replace.

So where others train already, nothing of the first step goes to them: reductions leave tensors as they are, and
``should_commit()`` says False, as after any dropped step. The next step asks, heals before its forward, and is as short as the
others' steps. A group that hangs, or dies, in its first step is waited for by nobody.
"""

from __future__ import annotations

import time

import torch

from torchft_x.comm.work import DoneWork
from torchft_x.train.context.context import RankContext


class Rehearsal:
    """Of one Manager. Used by the training thread.

    `wanted`: the first step is one. The same on all ranks of a group: they meet in collectives of their own meanwhile.
    """

    def __init__(self, context: RankContext, *, wanted: bool) -> None:
        self.is_on = False  # the step in hand is the rehearsal, or it was the last one and the next has not begun
        self._context = context
        self.is_over = not wanted  # no step will be it any more
        self._wanted = wanted  # the next step is it
        self._began: float | None = None  # monotonic; None: before it, and when it has ended

    def __repr__(self) -> str:
        return f"<Rehearsal {'wanted' if self._wanted else 'on' if self.is_on else 'over'}>"

    def start(self, *, ordinary: bool) -> bool:
        """A step begins. True: it is the rehearsal. `ordinary`: one that heals and lets newcomers in."""
        if self.is_over:
            return False
        self.end()
        self.is_on = False
        wanted, self._wanted = self._wanted and ordinary, False
        if not wanted:
            self.is_over = True
            return False
        self.is_on, self._began = True, time.monotonic()
        self._context.log.info("others train already: this group's first step is made without them, and dropped")
        return True

    def skip(self) -> None:
        """No rehearsal: the next step is no short one."""
        self._wanted = False

    def end(self) -> None:
        """The step ends, or was given up."""
        began, self._began = self._began, None
        if began is None:
            return
        c = self._context
        c.waits.next_step(time.monotonic())  # what it took says nothing about the steps of the others
        duration = time.monotonic() - began
        c.log.info("the first step took %.1f s; now this group asks to join", duration)
        c.events.emit("rehearsal", step=c.step.state.step, duration=duration)

    @staticmethod
    def reduce(tensor: torch.Tensor) -> DoneWork:
        """What a reduction is in a group that is alone."""
        return DoneWork(tensor)

    def report(self, error: Exception) -> None:
        """Something is wrong with the step: it is dropped in any case."""
        self._context.log.info("the first step, which is dropped, has failed: %s", error)

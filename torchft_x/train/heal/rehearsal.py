"""A newcomer's first step, made before it asks for a quorum, and dropped.

A first step is long: it compiles, starts the data loader, touches memory and initialises libraries. None of that needs
another group, but a newcomer that asked first would delay all groups of its quorum for as long. Its gradients are
useless in any case, because it computes them on weights that it is about to replace.

So if others train already, the first step sends them nothing: reductions leave tensors as they are, and
``should_commit()`` returns False, as after any dropped step. The next step asks, heals before its forward, and is as
short as the others' steps. Nobody waits for a group that hangs or dies in its first step.
"""

from __future__ import annotations

import time

from torchft_x.train.context.context import RankContext


class Rehearsal:
    """Rehearsal of one Manager: whether one is wanted, on or over. Used by the training thread.

    `wanted`: the first step is a rehearsal. It must be equal on all ranks of a group, which may run collectives in it.
    """

    def __init__(self, context: RankContext, *, wanted: bool) -> None:
        self.is_on = False  # from the start of the rehearsal to the start of the next step
        self._context = context
        self.is_over = not wanted  # no later step will be a rehearsal
        self._wanted = wanted  # the next step is the rehearsal
        self._began: float | None = None  # monotonic seconds of its start; None unless it runs

    def start(self, *, ordinary: bool) -> bool:
        """Begin a step. Return whether it is the rehearsal. An `ordinary` step heals and admits newcomers."""
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
        """Make no rehearsal, because the next step of a group that trains apart is not a short one."""
        self._wanted = False

    def end(self) -> None:
        """End the rehearsal, if it runs."""
        began, self._began = self._began, None
        if began is None:
            return
        c = self._context
        c.waits.next_step(time.monotonic())  # its time says nothing about the others' steps
        duration = time.monotonic() - began
        c.log.info("the first step took %.1f s; now this group asks to join", duration)
        c.events.emit("rehearsal", step=c.step.state.step, duration=duration)

    def report(self, error: Exception) -> None:
        """Log an error of the rehearsal, which is dropped in any case."""
        self._context.log.info("the first step, which is dropped, has failed: %s", error)

"""Decide when a group that trains apart exchanges with the others: one schedule for LocalSGD, DiLoCo, Streaming DiLoCo.

The model is cut into fragments, which are exchanged in turn. One fragment is exchanged in each *period* of
``sync_every / fragments`` inner steps::

    inner step   1 ... period - delay        ... period
                          | ask, count, send       | wait, vote, apply
                          +--- on the way ---------+

A group asks for its quorum when it is ready to send, and a new one before its first inner step, which is answered when
the others ask. In each quorum all members add up their *weights* (the census, decision 20). The weight is zero for a
group whose parameters are the global ones to the bit, because it has just begun or healed. If the sum is zero the step
is committed empty, and training begins (`Act.BEGIN`). Otherwise a group with nothing to send contributes zeros and
receives the result. A failed exchange is retried ``delay + 1`` inner steps later, or at once by such a group.

Sources: LocalSGD (arXiv 1805.09767), DiLoCo (2311.08105), Streaming DiLoCo (2501.18512); the period, delay and turn of
the fragments are torchft's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchft_x.errors import ConfigError, StepError


class Act(Enum):
    """Next action of the shell."""

    TRAIN = "train"  # make inner steps
    ASK = "ask"  # ask for a quorum, heal if required, take the census; then `counted`
    BEGIN = "begin"  # commit the empty step; then `begun`
    SEND = "send"  # start the reduction of `fragment`; then `sent`
    FINISH = "finish"  # wait for the reduction, vote, apply the result if committed; then `finished`


class _Phase(Enum):
    OUTSIDE = "not begun"
    APART = "in its inner steps"
    ASKING = "asking for a quorum"
    BEGINNING = "beginning with the others"
    SENDING = "sending"
    ON_THE_WAY = "in its inner steps, with a reduction on the way"
    FINISHING = "finishing an exchange"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a schedule. Raises `ConfigError` that names the wrong argument."""

    sync_every: int
    """Inner steps between two exchanges of the same fragment."""
    fragments: int = 1
    delay: int = 0
    """Inner steps that a reduction may take in the background."""

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise ConfigError(f"sync_every is {self.sync_every}; it must be 1 or more.")
        if self.fragments < 1 or self.sync_every % self.fragments:
            raise ConfigError(
                f"sync_every is {self.sync_every}; it must be a multiple of the number of fragments ({self.fragments}), "
                "as one of them is exchanged at a time."
            )
        if not 0 <= self.delay < self.period:
            raise ConfigError(
                f"fragment_sync_delay is {self.delay}; it must be 0 or more and below sync_every / fragments "
                f"({self.period}): an exchange must end before the next one begins."
            )

    @property
    def period(self) -> int:
        """Inner steps between two exchanges, of any fragments."""
        return self.sync_every // self.fragments

    def __str__(self) -> str:
        return f"every {self.sync_every} steps, {self.fragments} fragments, delay {self.delay}"


@dataclass(frozen=True, slots=True)
class Census:
    """Sums over the participants of a quorum."""

    weight: float  # total weight of the work that they have to send
    waiting: bool  # whether a member is at the end of the delay already, to send again after a failure


class SyncSchedule:
    """State machine of the exchanges, alike in all ranks of a group. Calls out of order raise `StepError`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings  # never changes
        self.exchanges = 0  # number of committed exchanges that were not empty; part of the state that heals copy
        self.position = 0  # inner steps made in this period
        self._since = [0] * settings.fragments  # per fragment: inner steps since its weights were the global ones
        self._phase = _Phase.OUTSIDE
        self._waiting = False  # the others are at the end of the delay: finish at once

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"Schedule({self._phase.value}, exchange {self.exchanges}, step {self.position}/{s.period}, fragment "
            f"{self.fragment}/{s.fragments})"
        )

    @property
    def fragment(self) -> int:
        """Index of the fragment that is exchanged at present, or next."""
        return self.exchanges % self.settings.fragments

    @property
    def has_work(self) -> bool:
        """Whether this group has something to send: inner steps that the fragment's global weights don't hold."""
        return self._since[self.fragment] > 0

    @property
    def progress(self) -> int:
        """Inner steps in the common weights plus those of this period. Equal in all groups after an exchange."""
        return self.exchanges * self.settings.period + self.position

    # --- inner steps ------------------------------------------------------------------------------------------------

    def enter(self) -> Act:
        """Begin training, or resume it after a break."""
        return self._ask() if self._phase is _Phase.OUTSIDE else Act.TRAIN

    def stepped(self) -> Act:
        """Record a step of the inner optimizer."""
        self._need(_Phase.APART, _Phase.ON_THE_WAY)
        self.position += 1
        self._since = [n + 1 for n in self._since]
        if self._phase is _Phase.ON_THE_WAY:
            return self._finish() if self.position >= self.settings.period else Act.TRAIN
        return self._ask() if self.position >= self.settings.period - self.settings.delay else Act.TRAIN

    def now(self) -> Act:
        """Exchange without waiting for the end of the period. The group then waits until the others reach theirs."""
        if self._phase is _Phase.ON_THE_WAY:
            return self._finish()
        self._need(_Phase.APART)
        return self._ask()

    # --- a quorum ---------------------------------------------------------------------------------------------------

    def healed(self, exchanges: int) -> None:
        """Record a heal: this group holds another's state, with `exchanges` exchanges. Its own inner work is lost."""
        if exchanges < 0:
            raise StepError(f"the source of this heal says it has made {exchanges} exchanges.")
        self.exchanges, self._since = exchanges, [0] * self.settings.fragments

    def counted(self, census: Census | None, *, behind: bool) -> Act:
        """Take the census of the quorum that has come. `census` None: the census has failed, and with it this step.

        `behind`: whether this group has healed to a trained state. All ranks of a group must decide alike, even if only
        some of them received the census. A rank without one infers from `behind` that the others were training.
        """
        self._need(_Phase.ASKING)
        nothing = not (self.has_work or behind) if census is None else census.weight == 0.0
        if nothing:
            self._phase = _Phase.BEGINNING
            return Act.BEGIN
        self._phase = _Phase.SENDING
        self.position = self.settings.period - self.settings.delay
        self._waiting = census is not None and census.waiting
        return Act.SEND

    def begun(self, committed: bool) -> Act:
        """Begin training once the empty step is committed: all members hold the same weights. Else retry at once."""
        self._need(_Phase.BEGINNING)
        return self._apart(0) if committed else self._ask()

    def sent(self) -> Act:
        self._need(_Phase.SENDING)
        if self._waiting or self.position >= self.settings.period:
            return self._finish()
        self._phase = _Phase.ON_THE_WAY
        return Act.TRAIN

    def finished(self, committed: bool, *, moved: bool) -> Act:
        """Record the end of an exchange. `moved`: whether the census of its last attempt was not zero (not empty)."""
        self._need(_Phase.FINISHING)
        if committed:
            if moved:
                self._since[self.fragment] = 0
                self.exchanges += 1
            return self._apart(0)
        if not self.has_work:
            return self._ask()
        return self._apart(self.settings.period - self.settings.delay - 1)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _ask(self) -> Act:
        self._phase = _Phase.ASKING
        return Act.ASK

    def _finish(self) -> Act:
        self._phase, self.position = _Phase.FINISHING, self.settings.period
        return Act.FINISH

    def _apart(self, position: int) -> Act:
        self._phase, self.position, self._waiting = _Phase.APART, position, False
        return Act.TRAIN

    def _need(self, *phases: _Phase) -> None:
        if self._phase not in phases:
            raise StepError(
                f"this schedule is {self._phase.value}; that must end first (was optimizer.step() called inside it, or "
                "did an earlier call of it raise?)."
            )

"""When a group that trains by itself meets the others: LocalSGD, DiLoCo and Streaming DiLoCo as one schedule.

The model is cut into fragments, which are exchanged in turn, one in each *period* of ``sync_every / fragments`` inner
steps::

    inner step   1 ... period - delay        ... period
                          | ask, count, send       | wait, vote, apply
                          +--- on the way ---------+

A group asks for its quorum where it is ready to send, not before: so a group that is late holds the others up in the
quorum, where the lighthouse knows who lives, and not in a collective that breaks; and who dies between two exchanges
costs the others nothing at all.

Who begins asks at once, before its first inner step, and gets its answer where the others ask. In each quorum all members
add up their *weights* (the census): zero for a group whose weights are the global ones to the bit, because it has just
begun or healed. So everybody knows the same two things without a message of its own:

* the sum is zero: all stand at the same weights. The step is committed empty, and training begins (`Act.BEGIN`);
* it is not: the others are ready to send. Who has nothing to send goes along with zeros and receives the result; nobody's
  work counts twice.

An exchange that fails costs no inner work: the local weights stay, and so does what they are measured against. It is
tried again ``delay + 1`` inner steps later; at once by a group that has nothing of its own.

Sources: LocalSGD (arXiv 1805.09767), DiLoCo (2311.08105), Streaming DiLoCo (2501.18512); the period, delay and turn of the
fragments are torchft's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchft_x.errors import ConfigError, StepError


class Act(Enum):
    """What the shell does next."""

    TRAIN = "train"  # inner steps
    ASK = "ask"  # ask for a quorum, heal if it says so, take the census; then `counted`
    BEGIN = "begin"  # commit the step, which is empty; then `begun`
    SEND = "send"  # start the reduction of `fragment`; then `sent`
    FINISH = "finish"  # wait for it, vote, apply it if it is committed; then `finished`


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
    """Raises `ConfigError` naming the argument."""

    sync_every: int
    """Inner steps between two exchanges of the same fragment."""
    fragments: int = 1
    delay: int = 0
    """Inner steps a reduction may take in the background."""

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
        """Inner steps between two exchanges."""
        return self.sync_every // self.fragments

    def __str__(self) -> str:
        return f"every {self.sync_every} steps, {self.fragments} fragments, delay {self.delay}"


@dataclass(frozen=True, slots=True)
class Census:
    """Sums over the participants of a quorum."""

    weight: float  # of what they have to send
    waiting: bool  # somebody stands at the end of the delay already: it sends again what broke


class SyncSchedule:
    """The machine; one for each rank, equal in all ranks of a group. Verbs that don't fit raise `StepError`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings  # fixed
        self.exchanges = 0  # that were committed with something in them; part of the state that heals
        self.position = 0  # inner steps of this period
        self._since = [0] * settings.fragments  # inner steps since the fragment's weights were the global ones
        self._phase = _Phase.OUTSIDE
        self._waiting = False  # the others stand at the end of the delay: finish at once

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"Schedule({self._phase.value}, exchange {self.exchanges}, step {self.position}/{s.period}, fragment "
            f"{self.fragment}/{s.fragments})"
        )

    @property
    def fragment(self) -> int:
        """Index of the one that is exchanged next, or now."""
        return self.exchanges % self.settings.fragments

    @property
    def has_work(self) -> bool:
        """Whether this group has something to send: inner steps that the fragment's global weights don't hold."""
        return self._since[self.fragment] > 0

    @property
    def progress(self) -> int:
        """Inner steps that the common weights stand for, and this period's. The same in all groups after an exchange."""
        return self.exchanges * self.settings.period + self.position

    # --- inner steps ------------------------------------------------------------------------------------------------

    def enter(self) -> Act:
        """Training begins, or goes on after a break."""
        return self._ask() if self._phase is _Phase.OUTSIDE else Act.TRAIN

    def stepped(self) -> Act:
        """The inner optimizer has made a step."""
        self._need(_Phase.APART, _Phase.ON_THE_WAY)
        self.position += 1
        self._since = [n + 1 for n in self._since]
        if self._phase is _Phase.ON_THE_WAY:
            return self._finish() if self.position >= self.settings.period else Act.TRAIN
        return self._ask() if self.position >= self.settings.period - self.settings.delay else Act.TRAIN

    def now(self) -> Act:
        """Don't wait for the end of the period. The other groups are waited for until they come to theirs."""
        if self._phase is _Phase.ON_THE_WAY:
            return self._finish()
        self._need(_Phase.APART)
        return self._ask()

    # --- a quorum ---------------------------------------------------------------------------------------------------

    def healed(self, exchanges: int) -> None:
        """This group holds another's state now. Its own inner work is gone."""
        if exchanges < 0:
            raise StepError(f"the source of this heal says it has made {exchanges} exchanges.")
        self.exchanges, self._since = exchanges, [0] * self.settings.fragments

    def counted(self, census: Census | None, *, behind: bool) -> Act:
        """The quorum is here. `census` None: it has failed, and with it this step.

        `behind`: this group has healed to a state that was trained already. All ranks of a group must go the same way, also if
        the census came through on some of them only; so who doesn't know goes by this: the others were training.
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
        """The empty step is committed: all members hold the same weights. If not, it is tried again at once."""
        self._need(_Phase.BEGINNING)
        return self._apart(0) if committed else self._ask()

    def sent(self) -> Act:
        self._need(_Phase.SENDING)
        if self._waiting or self.position >= self.settings.period:
            return self._finish()
        self._phase = _Phase.ON_THE_WAY
        return Act.TRAIN

    def finished(self, committed: bool, *, moved: bool) -> Act:
        """The exchange has ended. `moved`: the census of its last attempt was not zero, so there was something in it."""
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

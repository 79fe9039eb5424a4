"""One rank's way through a step, as `train.step.quorum_round`, `train.context.failures` and `train.manager` go it.

::

    idle -> asking -> [healing] -> reducing -> reduced -> voting -> [crossing] -> idle
                                   (a heal may go on beside, until it has to vote)

Every verb returns what the rank does at once: ("mesh", config id, members), ("post", row), ("left",), ("vote", vote),
("crossed", ok).
"""

from __future__ import annotations

from typing import Any

from tests.sim.untimed.freeze import register
from tests.sim.untimed.values import Contribution, Rules, Value, after, digest, origin
from torchft_x.core import heal
from torchft_x.core.commit.step import Step, Terms, over_error
from torchft_x.core.cross_group_vote import CrossVote, objection, row
from torchft_x.core.heal import WorldSizeMode
from torchft_x.core.messages.group import AnswerQuorum, Vote
from torchft_x.core.types import State
from torchft_x.errors import CollectiveError, StepError

Said = list[tuple[Any, ...]]


class Rank:
    """See the module."""

    def __init__(self, rules: Rules, group: str, rank: int) -> None:
        self.rules = rules
        self.group = group
        self.rank = rank  # in its group
        self.step = Step(min_replica_size=rules.min_replica_size)
        self.value: Value = origin(group if rules.init_sync else "")  # its parameters
        self.stage = "idle"
        self.sources: tuple[str, ...] = ()  # from whom it fetches now
        self.waits = True  # for the heal before it reduces, and the heal overwrites what it holds
        self.first = True  # no quorum yet
        self.config_id = 0  # of the newest process group
        self.broken = True  # that one can't be used any more
        self.snapshot: tuple[State, Value] | None = None  # what healers get
        self.result: tuple[Contribution, ...] | None = None  # of the reduction
        self.promised = False  # this group has told the others that it holds the result
        self.held: tuple[State, tuple[Contribution, ...]] | None = None  # the result of an undecided step

    # --- a quorum ----------------------------------------------------------------------------------------------------

    def ask(self) -> Terms:
        terms = self.step.ask()
        self.waits = self.first or terms.state.step == 0
        self.stage = "asking"
        self.sources, self.result, self.promised = (), None, False
        return terms

    def begin(self, name: str, answer: AnswerQuorum, out: list[tuple[Any, ...]]) -> Said:
        try:
            plan = heal.plan(answer.quorum, name, self.rank, init_sync=self.rules.init_sync, base=answer.base)
        except StepError as e:  # nobody holds a complete state
            self.step.unanswered()
            return [("died", str(e))]
        part = heal.participation(
            plan, contributes_after_heal=False, mode=WorldSizeMode.DYNAMIC, min_replica_size=self.rules.min_replica_size
        )
        ended = self.step.begin(plan.quorum_id, plan.top, part.rank, part.size, answer.commit)
        self.first = False
        if ended is not None and ended.committed:
            assert self.held is not None
            self._commit(self.held[1], ended.participants, out)
        self.held = None
        said = self._configure(plan)
        offers = plan.dst_ranks and self.step.state == plan.top and not self.step.torn
        self.snapshot = (plan.top, self.value) if offers else None
        self.sources = tuple(s.replica_id for s in plan.sources[:1])
        if plan.top.step >= self.rules.cap:
            self.stage = "parked"
            return said
        self.stage = "healing" if plan.heal and self.waits else "ready"
        return said + self._go_on()

    def _configure(self, plan: heal.Plan) -> Said:
        if self.step.error is not None:
            self.broken = True
            return []
        if plan.config_id == self.config_id and not self.broken:
            return []
        self.config_id, self.broken = plan.config_id, False
        return [("mesh", plan.config_id, plan.replica_ids)]

    # --- on and on ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> Said:
        """From one stage to the next, as far as nobody is waited for."""
        if self.stage == "healing" and self.sources:
            return []
        if self.stage in ("healing", "ready"):
            if self.step.error is None:
                self.stage = "reducing"
                mine = self.step.rank is not None
                return [("post", ("gradient", self.group, self.step.top.step, self.value) if mine else ("zeros",))]
            self.stage = "reduced"
        if self.stage == "reduced" and not self.sources:
            self.stage = "voting"
            vote = self.step.vote()
            broken = self.step.error is not None
            number = 0 if self.result is None else digest(self.result)
            return [("vote", Vote(0, self.rank, vote.step, vote.quorum_id, vote.ok, number, self.step.size, broken))]
        return []

    def taken(self, outcome: Any) -> Said:
        """The collective has ended for this rank; None: with an error."""
        if self.stage == "crossing":
            if outcome is None:
                return [*self._fail("the vote broke"), ("crossed", False)]
            return [("crossed", objection(outcome) == "")]
        said: Said = []
        if outcome is None:
            said += self._fail("the reduction broke")
        self.result, self.stage = outcome, "reduced"
        return said + self._go_on()

    def _fail(self, why: str) -> Said:
        self.step.fail(CollectiveError(why))
        return self._abort()

    def _abort(self) -> Said:
        was, self.broken = self.broken, True
        return [] if was else [("left",)]

    def over(self, quorum_id: int, lost: tuple[str, ...], reason: str) -> Said:
        if not self.step.over(quorum_id, over_error(quorum_id, lost, reason)):
            return []
        said = self._abort()
        if self.stage == "reducing":
            self.stage = "reduced"
            return said + self._go_on()
        return [*said, ("crossed", False)] if self.stage == "crossing" else said

    def healed(self, value: Value | None, *, torn: bool = False) -> Said:
        """The fetch has ended; None: without the state."""
        self.sources = ()
        said: Said = []
        if value is not None:
            self.step.healed(self.step.top, 0)
            self.value = value
        elif self.step.heal_failed(CollectiveError("the fetch broke"), torn=torn):
            said = self._abort()
        return said + self._go_on()

    # --- commit ------------------------------------------------------------------------------------------------------

    def cross(self, vote: CrossVote | None) -> Said:
        """The group is prepared, or takes part in the vote between groups without a say."""
        self.promised = vote is not None
        self.stage = "crossing"
        if self.step.error is not None:
            return [("crossed", False)]
        return [("post", ("row", row(vote)))]

    def settle(self, commit: bool, reason: str, out: list[tuple[Any, ...]]) -> None:
        state = State(self.step.top.step + 1, self.step.quorum_id)
        undecided = self.promised and not commit
        self.step.settle(commit, reason, undecided=undecided)
        self.stage = "idle"
        if commit:
            assert self.result is not None
            self._commit(self.result, self.step.size, out)
        elif undecided and self.result is not None:
            self.held = (state, self.result)
        self.result, self.promised = None, False

    def _commit(self, result: tuple[Contribution, ...], size: int, out: list[tuple[Any, ...]]) -> None:
        state, before = self.step.state, self.value
        self.value = after(before, state.step - 1, result)
        out.append(("commit", self.rank, self.step.quorum_id, state, before, self.value, result, size))


register(Rank, rules=lambda _: None)

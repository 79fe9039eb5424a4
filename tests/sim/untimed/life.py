"""One life of a group: the group server's machine and its ranks, driven as `rpc.group.shell` and `train.step.quorum_round` do.

What happens inside one group without waiting for anybody else is one event here. That is sound: a rank that posts its
part of a collective, votes, or answers later than at once leaves the others no outcome that they don't have anyway,
because an outcome may also be taken late, and as an error (see `search`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from tests.sim.untimed.freeze import age_group, register
from tests.sim.untimed.rank import Rank
from tests.sim.untimed.values import Rules
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import Life as Order
from torchft_x.core.types import State

OURS = "torchft_x/0.1"
ASK, VOTE, CROSS = 100, 200, 300
"""Calls of a rank: one of each is open at most."""
Out = tuple[Any, ...]
"""What others see of an event: ("up", message), ("mesh", rank, config id, members), ("post", rank, row),
("left", rank), ("commit", rank, ...), ("held", rank, state, value), ("end", why): for good, ("died", why): the group
starts again."""


class Life:
    """See the module. `handle` takes an event and returns what others see of it."""

    def __init__(self, rules: Rules, group: str, attempt: int) -> None:
        self.name = f"{group}:{attempt}"
        self.group = group
        self.attempt = attempt
        self.rules = rules
        config = GroupConfig(
            replica_id=self.name, address=self.name, store_address=self.name, world_size=rules.ranks, library=OURS,
            life=Order(attempt, 0.0, f"token-{self.name}"), runs_on=rules.grants, commit_vote=rules.vote,
            promised=0.001 * rules.grant_steps,
        )  # fmt: skip
        self.machine = Group(config, 0.0)
        self.session: int | None = None  # open stream, as far as this side knows
        self.stands = False  # the lighthouse has welcomed it
        self.ranks = [Rank(rules, group, r) for r in range(rules.ranks)]
        self._out: list[Out] = []  # of the event in hand

    def handle(self, event: tuple[Any, ...]) -> list[Out]:
        self._out = []
        getattr(self, f"_on_{event[0]}")(*event[1:])
        hold = self.machine._hold
        if not hold._sent:  # numbers only tell answers of one session and one quorum apart
            hold._number = 0
        out, self._out = self._out, []
        return out

    @property
    def state(self) -> State:
        """The newest that all ranks hold."""
        return min(rank.step.state for rank in self.ranks)

    @property
    def idle(self) -> bool:
        """Whether it stands at a step boundary and has not asked."""
        return all(rank.stage == "idle" for rank in self.ranks)

    # --- events: of the session --------------------------------------------------------------------------------------

    def _on_connect(self, session: int) -> None:
        self.session = session
        self._out.append(("up", replace(self.machine.hello(0.0), session=session)))

    def _on_down(self, message: Any) -> None:
        """A message from the lighthouse: `core` events as its stream carries them."""
        if message == "welcome":
            self.stands = True
            self._feed(gm.SessionUp())
        elif message == "closed":
            stood, self.session, self.stands = self.stands, None, False
            if stood:
                self._feed(gm.SessionDown("cut"))
        else:
            self._feed(message)

    def _on_age(self) -> None:
        """A long time has passed."""
        age_group(self.machine)

    # --- events: of the ranks ----------------------------------------------------------------------------------------

    def _on_ask(self, r: int) -> None:
        rank = self.ranks[r]
        terms = rank.ask()
        self._feed(
            gm.Ask(
                ASK + r, r, terms.state, torn=terms.torn, commit_failures=terms.commit_failures, reason=terms.reason,
                step_seconds=0.001,
            )
        )  # fmt: skip

    def _on_lost(self, r: int) -> None:
        """The call in which this rank waits for a quorum breaks; the rank will ask again."""
        self._feed(gm.CallGone(ASK + r))
        self.ranks[r].step.unanswered()
        self.ranks[r].stage = "idle"

    def _on_taken(self, r: int, row: Any) -> None:
        """The outcome of the collective this rank is in; None: an error."""
        self._after(r, self.ranks[r].taken(row))

    def _on_healed(self, r: int, value: Any) -> None:
        """What was fetched; None: nothing."""
        rank = self.ranks[r]
        self._after(r, rank.healed(value))
        if value is not None:
            self._out.append(("held", r, rank.step.state, rank.value))

    def _on_torn(self, r: int) -> None:
        self._after(r, self.ranks[r].healed(None, torn=True))

    def _on_depart(self) -> None:
        self._feed(gm.Leave())
        self._out.append(("end", "has left"))

    # --- the machine -------------------------------------------------------------------------------------------------

    def _feed(self, event: gm.GroupEvent) -> None:
        todo = deque(self.machine.handle(event, 0.0))
        if any(isinstance(effect, gm.PushEnd) for effect in todo):
            todo = deque(effect for effect in todo if not isinstance(effect, gm.FailCalls))  # the end says it all
        while todo:
            todo.extend(self._carry_out(todo.popleft()))

    def _carry_out(self, effect: gm.GroupEffect) -> list[gm.GroupEffect]:
        match effect:
            case gm.SendJoin():
                e = effect
                self._up(lm.Join(0, e.member, e.reason, (), e.traits, e.number, e.step_seconds))
            case gm.SendProgress(quorum_id, step, number, step_seconds):
                self._up(lm.Progress(0, quorum_id, step, number, step_seconds))
            case gm.SendLeave(state):
                self._up(lm.Leave(0, state))
            case gm.AnswerQuorum():
                for call in effect.calls:
                    self._after(call - ASK, self.ranks[call - ASK].begin(self.name, effect, self._out))
            case gm.AnswerPrepared(calls, vote):
                for call in calls:
                    self._after(call - VOTE, self.ranks[call - VOTE].cross(vote))
            case gm.AnswerVote(calls, commit, reason):
                for call in calls:
                    self.ranks[call % 100].settle(commit, reason, self._out)
            case gm.PushRevoked(quorum_id, lost, reason):
                for r, rank in enumerate(self.ranks):
                    self._after(r, rank.over(quorum_id, lost, reason))
            case gm.PushEnd(sentence):
                self._out.append(("end", sentence))
            case gm.FailCalls():
                self._out.append(("died", effect.sentence))
        return []

    def _up(self, message: Any) -> None:
        assert self.session is not None
        self._out.append(("up", replace(message, session=self.session)))

    def _after(self, r: int, said: list[Out]) -> None:
        """What a rank does at once: posts to its collective, or calls the group server."""
        rank = self.ranks[r]
        for what, *values in said:
            if what == "vote":
                self._feed(replace(values[0], call=VOTE + r))
            elif what == "crossed":
                self._feed(gm.CrossVoteEnded(CROSS + r, r, rank.step.top.step, rank.step.quorum_id, values[0]))
            elif what == "died":
                self._out.append(("died", values[0]))
            else:
                self._out.append((what, r, *values))


register(Life, rules=lambda _: None, _out=lambda _: None)

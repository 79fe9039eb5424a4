"""One attempt of a group: its ranks' processes, and the group server in the first of them.

The group server is the product's machine, driven as `rpc.group.shell` does: one session to the lighthouse, one open
call per asking rank, pushes to all ranks. A rank that ends takes its whole group with it (torchrun), and the
supervisor sees the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.base import Process, fold
from tests.sim.hub import Hub
from tests.sim.rank_node import RankNode
from tests.sim.uplink import Uplink
from torchft_x.comm.votes.ranks import RankVote
from torchft_x.core.commit.values import LocalVote, Terms
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.group.quorum_deadline import QuorumDeadline
from torchft_x.core.messages import Tick
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import AttemptId
from torchft_x.timing import POLL

if TYPE_CHECKING:
    from tests.sim.supervisor_node import SupervisorNode
    from tests.sim.world import World

OURS = "torchft_x/0.1"
_SWEEP = 0.05  # seconds within which torchrun kills the other ranks
_FLUSH = 0.02  # seconds between a leave and the end of the process


class GroupNode:
    """One attempt of a group: owns its ranks, the group server's machine and the session to the lighthouse."""

    def __init__(self, world: World, supervisor: SupervisorNode, replica_id: str, attempt_id: AttemptId) -> None:
        self.world = world
        self.supervisor = supervisor  # its `on_exit` is called at the end
        self.replica_id = replica_id
        self.group = supervisor.group  # group id
        self.attempt_id = attempt_id
        self.site = supervisor.host
        self.address = f"{self.site}/{replica_id}"  # the group server's
        self.ended = False  # all processes have ended
        self.leaving_at: int | None = None  # step: leave after the first commit that reaches it; all ranks decide alike
        self.left = False  # the leave was sent
        self._started = False  # the ranks have begun
        clock = world.clock_of(self.site)
        self.processes = [Process(f"{replica_id}/{r}", self.site, clock) for r in range(world.config.ranks)]
        config = GroupConfig(
            replica_id=replica_id,
            address=self.address,
            store_address=f"{self.site}/{replica_id}/store",
            world_size=world.config.ranks,
            library=OURS,
            attempt_id=attempt_id,
            boot_id=world.boot_of(self.site),
            runs_on=world.config.runs_on,
            commit_vote=world.config.commit_vote,
        )
        self.machine = Group(config, clock.read(world.now))
        self.deadline = QuorumDeadline(clock.read(world.now))
        self.ranks = [RankNode(self, r, process) for r, process in enumerate(self.processes)]
        self.hub = Hub(self)
        self.uplink = Uplink(world, self.processes[0], self)
        self._calls: dict[int, int] = {}  # open call -> group rank
        self._exit_code = 0

    def __repr__(self) -> str:
        return f"<{self.replica_id} {self.machine!r}>"

    def eager(self) -> bool:
        """Return whether this group would continue at once without a session."""
        return self.machine.goes_on_alone(self._clock_now)

    def on_pong(self, sent_at: float) -> None:
        self.feed(gm.PongArrived(sent_at))

    @property
    def process(self) -> Process:
        """Process of the group server: that of rank 0."""
        return self.processes[0]

    def start(self) -> None:
        """Make the group server listen and connect, and let the ranks wait for the first session."""
        world = self.world
        world.listening[self.address] = self
        world.note(self.replica_id, "starts")
        if world.first_steps.get(self.group, 0.0) > world.now:
            for rank in self.ranks:
                rank.hung = True
            world.at(world.first_steps[self.group], None, self.wake)
        self.uplink.connect()
        world.after(POLL, self.process, self._tick)
        world.after(world.config.connect_limit * 20, self.process, self._no_session)

    def wake(self, killed: bool = False) -> None:
        """Let training threads that hang continue, unless the supervisor has `killed` the group by now."""
        if killed:
            self.kill(-9)
        for rank in self.ranks:
            rank.wake()

    def _no_session(self) -> None:
        """End the group if it has no session in time."""
        if not self._started:
            self.end_rank(self.ranks[0], 1, "no session with the lighthouse in time")

    def _tick(self) -> None:
        self.feed(Tick())
        for call in self.deadline.expired(self.machine.incomplete, self._clock_now):
            self._reply(call, "on_expired")
        self.world.checker.on_group_tick(self)
        self.world.after(POLL, self.process, self._tick)

    # --- events in, effects out ----------------------------------------------------------------------------------

    def feed(self, event: gm.GroupEvent) -> None:
        """Give the machine an event, and carry out its effects."""
        self._carry_out_all(self.handle(event))

    def _carry_out_all(self, effects: list[gm.GroupEffect]) -> None:
        for effect in effects:
            self.carry_out(effect)

    def handle(self, event: gm.GroupEvent) -> list[gm.GroupEffect]:
        """Return the machine's effects of an event, without carrying them out."""
        return self.machine.handle(event, self._clock_now)

    @property
    def _clock_now(self) -> float:
        return self.process.clock.read(self.world.now)

    def carry_out(self, effect: gm.GroupEffect) -> None:
        world = self.world
        if isinstance(effect, lm.Join):
            member = effect.member
            world.note(self.replica_id, "joins at {}, {}{}", member.state, effect.reason.value,
                       " torn" if member.torn else "")  # fmt: skip
            world.checker.on_join(self, member)
            self.uplink.send(effect)
        elif isinstance(effect, gm.QuorumReply):
            if effect.commit is not None:
                world.note(self.replica_id, "commits {} late", effect.commit.state)
                world.checker.on_late(self, effect.quorum, effect.commit)
            for call in effect.calls:
                self._reply(call, "on_quorum", effect.quorum, effect.base, effect.commit)
        elif isinstance(effect, lm.Progress):
            self.uplink.send(effect)
        elif isinstance(effect, gm.FailCalls):
            for call in effect.calls:
                self._reply(call, "on_failed", effect.sentence, effect.retry)
        elif isinstance(effect, lm.Leave):
            world.note(self.replica_id, "leaves at {}", effect.state)
            self.uplink.send(effect)
        elif isinstance(effect, lm.RevokeQuorum):
            for rank in self.ranks:
                self.tell(rank, rank.failures.on_over, effect.quorum_id, effect.lost, effect.reason)
        elif isinstance(effect, gm.PushEnd):
            for rank in self.ranks:
                self.tell(rank, rank.end, 1, effect.sentence)
        else:
            world.note(self.replica_id, "notes {}", effect.text)

    def _reply(self, call: int, what: str, *values: Any) -> None:
        rank = self._calls.pop(call, None)
        self.deadline.end(call)
        if rank is not None:
            node = self.ranks[rank]
            self.tell(node, getattr(node, what), call, *values)

    def tell(self, rank: RankNode, call: Any, *values: Any) -> None:
        """Send from the group server to a rank: to another thread, or to another process of the host."""
        self.world.after(self.world.rng.uniform(*self.world.config.inside), rank.process, call, *values)

    # --- the ranks' calls ----------------------------------------------------------------------------------------

    def ask(self, rank: RankNode, terms: Terms) -> int:
        """Ask for a quorum for one rank. Return the number of its call."""
        event = self._ask(rank, terms)
        if self.process.dead:
            self.tell(rank, rank.on_failed, event.call, "the group server is gone", True)
        else:
            seconds = self.world.rng.uniform(*self.world.config.inside)
            self.world.after(seconds, self.process, lambda: self._carry_out_all(self._on_ask(event)))
        return event.call

    def _ask(self, rank: RankNode, terms: Terms) -> gm.Ask:
        return gm.Ask(
            call=self.world.next_id(),
            rank=rank.rank,
            state=terms.state,
            torn=terms.torn,
            commit_failures=terms.commit_failures,
            checkpoint_metadata=f"{self.address}/{rank.rank}",
            reason=terms.reason,
            suspects=terms.suspects,
            unreached=terms.unreached,
            step_seconds=rank.pace.seconds,
            patience=rank.budget.patience(self.world.now),
            usual=self.world.config.quorum_timeout if self.world.config.endures else 0.0,
            keeps=bool(rank.reduction.claim),
            held=rank.reduction.claim,
        )

    def ask_now(self, rank: RankNode, terms: Terms) -> tuple[int, bool]:
        """Ask for a quorum for rank 0, which calls its machine directly.

        Return the number of the call, and whether rank 0 continues in the quorum that the group holds.
        """
        event = self._ask(rank, terms)
        effects = self._on_ask(event)
        on = any(isinstance(e, gm.QuorumReply) and event.call in e.calls and e.base is not None for e in effects)
        self._carry_out_all(effects)
        return event.call, on

    def _on_ask(self, event: gm.Ask) -> list[gm.GroupEffect]:
        self._calls[event.call] = event.rank
        if event.usual > 0:
            self.deadline.begin(event.call, event.usual, self._clock_now)
        return self.handle(event)

    def vote(self, rank: RankNode, vote: LocalVote) -> None:
        """Send a rank's vote to the group's hub."""
        size, result = rank.step.size, rank.reduction.result
        broken = rank.step.error is not None
        mine = RankVote(vote.quorum_id, vote.step, vote.ok, broken, fold(result, size), size)
        self.tell(self.ranks[0], self.hub.gather if rank.rank == 0 else self.hub.on_vote, rank.rank, mine)

    def gone(self, call: int) -> None:
        """Record that a rank no longer waits for this call."""
        self.world.after(self.world.config.inside[1], self.process, self._on_gone, call)

    def why_no_quorum(self, call: int) -> str:
        """Return the reason given to a rank whose deadline has passed."""
        if self.process.dead:
            return "the group server is gone."
        if call not in self._calls:
            return "the question or its answer is still under way."
        return self.machine.waiting

    def _on_gone(self, call: int) -> None:
        if self._calls.pop(call, None) is not None:
            self.deadline.end(call)
            self.feed(gm.CallGone(call))

    # --- the session ---------------------------------------------------------------------------------------------

    def hello(self) -> lm.Hello:
        return self.machine.hello(self._clock_now)

    def on_up(self) -> None:
        self.world.note(self.replica_id, "has a session")
        self.deadline.session(True, self._clock_now)
        self.feed(gm.SessionUp())
        if not self._started:
            self._started = True
            for rank in self.ranks:
                self.tell(rank, rank.begin)

    def on_down(self, reason: str) -> None:
        self.world.note(self.replica_id, "has no session: {}", reason)
        self.deadline.session(False, self._clock_now)
        self.feed(gm.SessionDown(reason))

    def on_word(self, message: Any) -> None:
        if isinstance(message, (lm.RevokeQuorum, lm.Extend, lm.Fence, lm.Refuse)):
            self.feed(message)
        elif isinstance(message, lm.SendWaits):
            self.deadline.waits(message.reason, message.pauses, self._clock_now)
        else:
            self.feed(gm.QuorumArrived(message))

    # --- the end -------------------------------------------------------------------------------------------------

    def leave(self, rank: RankNode) -> None:
        """Leave the job at a rank's last boundary.

        Rank 0 sends the leave for all; then the group ends, or evaluates first.
        """
        if rank.rank != 0 or self.left:
            return
        world = self.world
        self.left = True
        world.checker.departures.leaves(self)
        self.feed(gm.Leave())
        self.uplink.close()
        if world.ending is None:
            world.after(_FLUSH, self.process, self._ends_by_itself, 0)
            return
        seconds, code = world.ending.evaluation(world)
        world.after(_FLUSH, self.process, self._closes)
        world.after(_FLUSH + seconds, self.process, self._ends_by_itself, code)

    def leaves_after(self, step: int) -> bool:
        """Return whether `step` was this group's last step."""
        last = [self.leaving_at, self.world.ending and self.world.ending.last_step]
        return any(x is not None and step >= x for x in last)

    def _closes(self, *, die: bool = False) -> None:
        """Close the group server and the process groups, as `manager.shutdown` does.

        The processes live on unless `die`.
        """
        self.world.listening.pop(self.address, None)
        for rank in self.ranks:
            if die:
                rank.process.die()
            self.world.fabric.died(rank)
            self.world.transfers.died(rank)

    def _ends_by_itself(self, code: int) -> None:
        if code and not self.ended:
            self.world.note(self.replica_id, "fails in its evaluation")
        self.kill(code)

    def end_rank(self, rank: RankNode, code: int, reason: str) -> None:
        """End this rank's process. torchrun then ends the others."""
        if self.ended or rank.process.dead:
            return
        self.world.note(rank.process.name, "ends with code {}: {}", code, reason)
        self._kill_process(rank.rank)
        self._exit_code = self._exit_code or code
        self.world.after(self.world.rng.uniform(0.0, _SWEEP), None, self.kill, code)

    def kill(self, code: int) -> None:
        """End all processes of this attempt now."""
        if self.ended:
            return
        self.ended = True
        for index in range(len(self.processes)):
            self._kill_process(index)
        self.world.checker.departures.ends(self, self._exit_code or code)
        self.world.after(self.world.rng.uniform(0.0, 0.1), self.supervisor.process, self.supervisor.on_exit, self,
                         self._exit_code or code)  # fmt: skip

    def vanish(self) -> None:
        """End this attempt by a power loss of its host: no message reports the end."""
        self.ended = True
        self.world.checker.departures.ends(self, -1)  # the supervisor is lost, too, so that the exit code stays unknown
        self._closes(die=True)
        self.world.note(self.replica_id, "has lost its power")

    def _kill_process(self, index: int) -> None:
        process = self.processes[index]
        if process.dead:
            return
        rank = self.ranks[index]
        process.die()
        self.world.note(process.name, "is dead")
        self.world.fabric.died(rank)
        self.world.transfers.died(rank)
        if index == 0:
            self.world.listening.pop(self.address, None)
            self.uplink.close()
            for other in self.ranks[1:]:  # their connections to rank 0 close
                self.tell(other, other.end, 1, "the group server is gone")
        else:
            self.tell(self.ranks[0], self.hub.on_closed, index)

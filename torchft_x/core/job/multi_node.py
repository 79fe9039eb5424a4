"""Start and end the attempts of groups over several nodes on all nodes together, and report each attempt once.

Each node of such a group has its own supervisor. The supervisors don't talk to each other: when all are ready, the
lighthouse *begins* an attempt (the same number, token and meeting address for all). It is *over* once a part ends
badly, or a part's supervisor stays away for longer than the grace. Then every node ends its part.

The end of an attempt proves its death to the other groups, so it is reported only when every node has confirmed it. A
node whose supervisor was replaced before it confirmed can't confirm. Then nothing is proven: the next attempt may begin
all the same, and the old one ends with its lease.

The contract with the shell is that of `core.messages`: ``handle(event, now)`` returns effects, `Tick` comes often. The
events and effects are in `core.messages.nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, SupervisorHere
from torchft_x.core.messages.lighthouse import CloseSession, Refuse
from torchft_x.core.messages.nodes import (
    NodeDone,
    NodeEffect,
    NodeEnded,
    NodeEvent,
    NodeGone,
    NodeReady,
    NodeStarted,
    SendAttemptOver,
    SendBegin,
    SendStop,
)
from torchft_x.core.presence import Presence
from torchft_x.timing import LOG_AFTER, TIMING

_REMEMBERED = 8  # past attempts kept per group: a node that missed the end of one is told again
_LOST = -9  # code of an attempt that ended because its supervisor did (its workers were killed)


class _Attempt:
    """The newest attempt of a group, from its start until every node is accounted for."""

    def __init__(self, number: int, token: str, meeting: str, now: float) -> None:
        self.since = now  # when it was begun or first reported; the absence of a node counts from here at the earliest
        self.number = number  # equal on all nodes
        self.token = token  # as in `core.types.AttemptId.token`
        self.meeting = meeting  # host:port; empty: an earlier lighthouse began the attempt, known from nodes only
        self.ended: set[int] = set()  # nodes that have confirmed that nothing of the attempt runs there
        self.unproven: set[int] = set()  # nodes whose supervisor was replaced before it confirmed
        self.over: tuple[int, str] | None = None  # code and reason, once the attempt is over

    def runs_on(self, node: int) -> bool:
        """Return whether the attempt may still run on this node, as far as is known."""
        return node not in self.ended and node not in self.unproven


class _Node(Presence):
    """One node of a group, and the supervisor on it. It has one stream: a newer stream replaces the older."""

    __slots__ = ("incarnation", "number", "ready", "replaced")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number  # from 0
        self.incarnation = ""  # incarnation of the newest supervisor
        self.replaced: set[str] = set()  # incarnations that a newer one has replaced
        self.ready: NodeReady | None = None  # newest report of this node while it waits for an attempt


class _Group:
    def __init__(self, name: str, nodes: int) -> None:
        self.name = name  # group id
        self.nodes = [_Node(n) for n in range(nodes)]  # by node
        self.number = -1  # number of the newest attempt that any node knows
        self.attempt: _Attempt | None = None  # newest attempt, until every node is accounted for
        self.past: dict[str, tuple[int, str]] = {}  # token -> code and reason of the newest past attempts
        self.stopped: tuple[int, str] | None = None  # why no attempt is begun any more: a node is done, or all finished
        self.waits_since: float | None = None  # when the group began to wait; None: it does not wait
        self.noted = ""  # reason for the wait that was logged last

    @property
    def waits_for(self) -> str:
        """Reason why no attempt can begin, a clause for people; empty: one runs, or none is wanted."""
        if self.stopped is not None or (self.attempt is not None and self.attempt.over is None):
            return ""
        ending = [] if self.attempt is None else [s for s in self.nodes if self.attempt.runs_on(s.number)]
        missing = [s for s in self.nodes if s.stream is None]
        unready = [s for s in self.nodes if s.stream is not None and s.ready is None and s not in ending]
        what = [_named(missing, "to come" if self.number < 0 else "to come back")]
        what += [_named([s for s in ending if s not in missing], "to end its part"), _named(unready, "to be ready")]
        return f"group {self.name} waits for {' and '.join(w for w in what if w)}"


class GangCoordinator:
    """State machine of the attempts of groups over several nodes.

    `make_token` returns a fresh attempt token; `gone_grace` is the number of seconds for which a stream may be away.
    """

    def __init__(self, make_token: Callable[[], str], gone_grace: float = TIMING.gone_grace) -> None:
        self._make_token = make_token  # passed in, because tokens are random and a machine is not
        self._gone_grace = gone_grace  # seconds
        self._groups: dict[str, _Group] = {}  # by group id
        self._sessions: dict[int, tuple[_Group, _Node]] = {}  # newest stream of each node

    def __repr__(self) -> str:
        return f"GangCoordinator({'; '.join(g.waits_for or f'group {g.name} runs' for g in self._groups.values())})"

    def handle(self, event: NodeEvent, now: float) -> list[NodeEffect]:
        """Handle one event at `now` (monotonic seconds) and return the effects that the shell must carry out."""
        if isinstance(event, Tick):
            return [effect for group in self._groups.values() for effect in self._follow_up(group, now)]
        if isinstance(event, SupervisorHere):
            return self._on_here(event, now)
        known = self._sessions.get(event.session)
        if known is None:  # the stream has been replaced or refused
            return []
        effects = self._hear(*known, event, now)
        return [*effects, *self._follow_up(known[0], now)]

    def retain(self, groups: Collection[str]) -> None:
        """Forget the other groups that have ended: the job no longer has them. They may be added again."""
        self._groups = {name: g for name, g in self._groups.items() if name in groups or g.stopped is None}

    # --- hearing -------------------------------------------------------------------------------------------------------

    def _on_here(self, event: SupervisorHere, now: float) -> list[NodeEffect]:
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = _Group(event.group, event.nodes)
        if event.nodes != len(group.nodes):
            text = (
                f"Node {event.node} of group {group.name} was told that the group has {event.nodes} nodes, the others"
            )
            return [Refuse(f"{text} {len(group.nodes)}; give all of them the same --nodes.", event.stream)]
        node = group.nodes[event.node]
        if event.incarnation in node.replaced:
            text = f"Another supervisor has taken over node {node.number} of group {group.name}, on {node.host}."
            return [Refuse(text, event.stream)]
        effects: list[NodeEffect] = []
        if node.stream is not None:
            effects.append(CloseSession(node.stream))
            self._drop(node, node.stream, now)
        if node.incarnation not in ("", event.incarnation):
            effects += self._replace(group, node)
        node.arrive(event.stream, event.host, now)
        node.incarnation, node.ready = event.incarnation, None  # the supervisor reports its state again
        self._sessions[event.stream] = (group, node)
        if group.stopped is not None and node.finished is None:
            effects.append(SendStop(event.stream, *group.stopped))
        return [*effects, *self._follow_up(group, now)]

    def _drop(self, node: _Node, session: int, now: float) -> None:
        """Forget a stream that has ended or was replaced, and with it the attempt that the node was ready for."""
        del self._sessions[session]
        node.leave(session, now)
        node.ready = None

    def _replace(self, group: _Group, node: _Node) -> list[NodeEffect]:
        """Record that a newer supervisor has come: it runs nothing, and it is unknown what the old one still runs."""
        node.replaced.add(node.incarnation)
        node.finished = None
        attempt = group.attempt
        if attempt is None or not attempt.runs_on(node.number):
            return []
        attempt.unproven.add(node.number)
        why = f"the supervisor of node {node.number} was started again"
        return [] if attempt.over is not None else self._end(group, attempt, _LOST, why)

    def _hear(self, group: _Group, node: _Node, event: NodeEvent, now: float) -> list[NodeEffect]:
        if isinstance(event, NodeGone):
            self._drop(node, event.session, now)
            return []
        if isinstance(event, NodeReady):
            return self._on_ready(group, node, event)
        if isinstance(event, NodeStarted):
            return self._on_started(group, event, now)
        if isinstance(event, NodeEnded):
            return self._on_ended(group, node, event, now)
        return self._on_done(group, node, event) if isinstance(event, NodeDone) else []

    def _on_ready(self, group: _Group, node: _Node, event: NodeReady) -> list[NodeEffect]:
        node.ready = event
        attempt = group.attempt
        if attempt is None or not attempt.runs_on(node.number):
            return []
        if attempt.over is None and attempt.meeting:  # the order to begin was lost with the earlier stream
            node.ready = None
            return [SendBegin(event.session, attempt.number, attempt.token, attempt.meeting)]
        return self._runs_nothing(group, attempt, node, f"node {node.number} did not begin with the others")

    def _on_started(self, group: _Group, event: NodeStarted, now: float) -> list[NodeEffect]:
        effects = self._known(group, event, now)
        attempt = group.attempt
        if attempt is not None and attempt.token == event.attempt_token:
            over = attempt.over
            return effects if over is None else [*effects, SendAttemptOver(event.session, attempt.token, *over)]
        over = group.past.get(event.attempt_token, (_LOST, "another attempt of the group has been begun"))
        return [*effects, SendAttemptOver(event.session, event.attempt_token, *over)]

    def _on_ended(self, group: _Group, node: _Node, event: NodeEnded, now: float) -> list[NodeEffect]:
        effects = self._known(group, event, now)
        attempt = group.attempt
        if attempt is None or attempt.token != event.attempt_token:
            over = group.past.get(event.attempt_token, (event.code or _LOST, event.reason))
            return [*effects, SendAttemptOver(event.session, event.attempt_token, *over)]
        attempt.ended.add(node.number)
        if attempt.over is not None:
            return [*effects, SendAttemptOver(event.session, attempt.token, *attempt.over)]
        if event.code != 0:
            effects += self._end(group, attempt, event.code, event.reason)
        elif len(attempt.ended) == len(group.nodes):
            effects += self._end(group, attempt, 0, "")
        return effects

    def _on_done(self, group: _Group, node: _Node, event: NodeDone) -> list[NodeEffect]:
        node.finished = event.code, event.sentence
        effects: list[NodeEffect] = []
        attempt = group.attempt
        if attempt is not None and not (event.code == 0 and node.number in attempt.ended):
            effects += self._runs_nothing(group, attempt, node, f"node {node.number} stopped: {event.sentence}")
        if group.stopped is None:
            group.stopped = (event.code, f"node {node.number} stopped: {event.sentence}")
            effects += [
                SendStop(s.stream, *group.stopped) for s in group.nodes if s.stream is not None and s.finished is None
            ]
        return effects

    def _known(self, group: _Group, event: NodeStarted | NodeEnded, now: float) -> list[NodeEffect]:
        """Remember the attempt number, and take over an attempt that an earlier lighthouse has begun."""
        group.number = max(group.number, event.attempt)
        if group.attempt is not None or event.attempt_token in group.past or group.stopped is not None:
            return []
        attempt = group.attempt = _Attempt(event.attempt, event.attempt_token, "", now)
        effects: list[NodeEffect] = [AttemptStarted(group.name, event.attempt, event.attempt_token)]
        for s in group.nodes:
            if s.ready is not None:  # the node came to us before and knows nothing of this attempt
                effects += self._runs_nothing(group, attempt, s, f"node {s.number} is not part of it")
        return effects

    def _runs_nothing(self, group: _Group, attempt: _Attempt, node: _Node, why: str) -> list[NodeEffect]:
        """Record that the node runs nothing. This confirms the end there only if this lighthouse began the attempt."""
        if attempt.runs_on(node.number):
            (attempt.ended if attempt.meeting else attempt.unproven).add(node.number)
        return [] if attempt.over is not None else self._end(group, attempt, _LOST, why)

    # --- deciding ------------------------------------------------------------------------------------------------------

    def _end(self, group: _Group, attempt: _Attempt, code: int, reason: str) -> list[NodeEffect]:
        attempt.over = (code, reason)
        return [
            SendAttemptOver(s.stream, attempt.token, code, reason)
            for s in group.nodes
            if s.stream is not None and s.finished is None
        ]

    def _follow_up(self, group: _Group, now: float) -> list[NodeEffect]:
        """Return the effects that follow from the group's present state, independent of the event."""
        effects: list[NodeEffect] = []
        attempt = group.attempt
        if attempt is not None and attempt.over is None:
            effects += self._miss(group, attempt, now)
        if attempt is not None and not any(attempt.runs_on(s.number) for s in group.nodes):
            effects += self._close(group, attempt)
        if group.attempt is None and group.stopped is None and all(s.ready for s in group.nodes):
            effects += self._begin(group, now)
        return [*effects, *self._note_wait(group, now)]

    def _miss(self, group: _Group, attempt: _Attempt, now: float) -> list[NodeEffect]:
        """End an attempt if the supervisor of one of its parts has been away for longer than the grace."""
        for s in group.nodes:
            missed = min(s.absent_for(now), now - attempt.since)
            if missed >= self._gone_grace and attempt.runs_on(s.number):
                where = f" on {s.host}" if s.host else ""
                return self._end(group, attempt, _LOST, f"the supervisor of node {s.number}{where} is gone")
        return []

    def _close(self, group: _Group, attempt: _Attempt) -> list[NodeEffect]:
        """Close an attempt of which every node is accounted for, and report its end if all have confirmed it."""
        assert attempt.over is not None
        group.attempt = None
        group.past[attempt.token] = attempt.over
        while len(group.past) > _REMEMBERED:
            del group.past[next(iter(group.past))]
        effects: list[NodeEffect] = []
        if attempt.over[0] == 0 and group.stopped is None:
            group.stopped = (0, f"group {group.name} has finished already")
            # these supervisors were restarted after their node's part had finished
            effects += [SendStop(s.ready.session, *group.stopped) for s in group.nodes if s.ready is not None]
        if not attempt.unproven:
            effects.append(AttemptExited(group.name, attempt.number, attempt.token, *attempt.over))
        return effects

    def _begin(self, group: _Group, now: float) -> list[NodeEffect]:
        ready = [s.ready for s in group.nodes if s.ready is not None]
        group.number = max(group.number + 1, *(r.attempt for r in ready))
        attempt = group.attempt = _Attempt(group.number, self._make_token(), ready[0].meeting, now)
        for node in group.nodes:
            node.ready = None
        begins = [SendBegin(r.session, attempt.number, attempt.token, attempt.meeting) for r in ready]
        return [AttemptStarted(group.name, attempt.number, attempt.token), *begins]

    def _note_wait(self, group: _Group, now: float) -> list[NodeEffect]:
        """Return a line for the log when a group has waited for a while, once per reason."""
        reason = group.waits_for
        if not reason:
            group.waits_since, group.noted = None, ""
        elif group.waits_since is None:
            group.waits_since = now
        elif now - group.waits_since >= LOG_AFTER and reason != group.noted:
            group.noted = reason
            return [Note("undecided", reason[0].upper() + reason[1:] + ".")]
        return []


def _named(nodes: list[_Node], what: str) -> str:
    """Return a clause such as ``nodes 1 and 3 to come``; empty for no nodes."""
    numbers = [str(n.number) for n in nodes]
    return f"{'node' if len(numbers) == 1 else 'nodes'} {' and '.join(numbers)} {what}" if numbers else ""

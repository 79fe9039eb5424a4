"""Start and end the lives of groups over several nodes on all nodes together, and report each life once.

Each node of such a group has its own supervisor. The supervisors don't talk to each other: when all are ready, the
lighthouse *begins* a life (the same attempt, token and meeting address for all). The life is *over* once a part ends
badly, or a part's supervisor stays away for longer than the grace. Then every node ends its part.

The end of a life proves its death to the other groups, so it is reported only when every node has confirmed it. A node
whose supervisor was replaced before it confirmed can't confirm. Then nothing is proven: the next life may begin all the
same, and the old one ends with its lease.

The contract with the shell is that of `core.messages`: ``handle(event, now)`` returns effects, `Tick` comes often. The
events and effects are in `core.messages.nodes`.
"""

from __future__ import annotations

from collections.abc import Callable

from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import LifeExited, LifeStarted
from torchft_x.core.messages.nodes import (
    CloseStream,
    NodeDone,
    NodeEffect,
    NodeEnded,
    NodeEvent,
    NodeGone,
    NodeHere,
    NodeReady,
    NodeStarted,
    RefuseNode,
    SendBegin,
    SendLifeOver,
    SendStop,
)
from torchft_x.core.presence import Presence
from torchft_x.timing import TIMING

_REMEMBERED = 8  # past lives kept per group: a node that missed the end of one is told again
_NOTE_WAIT_AFTER = 5.0  # seconds for which a group is incomplete before the log names the missing nodes
_LOST = -9  # code of a life that ended because its supervisor did (its workers were killed)


class _Life:
    """The newest life of a group, from its start until every node is accounted for."""

    def __init__(self, attempt: int, token: str, meeting: str, now: float) -> None:
        self.since = now  # when it was begun or first reported; the absence of a node counts from here at the earliest
        self.attempt = attempt  # attempt number, equal on all nodes
        self.token = token  # as in `core.types.Life.token`
        self.meeting = meeting  # host:port; empty: an earlier lighthouse began the life, known from nodes only
        self.ended: set[int] = set()  # nodes that have confirmed that nothing of the life runs there
        self.well: set[int] = set()  # nodes in `ended` that finished with 0
        self.unproven: set[int] = set()  # nodes whose supervisor was replaced before it confirmed
        self.over: tuple[int, str] | None = None  # code and reason, once the life is over

    def runs_on(self, node: int) -> bool:
        """Return whether the life may still run on this node, as far as is known."""
        return node not in self.ended and node not in self.unproven


class _Node(Presence):
    """One node of a group, and the supervisor on it. It has one stream: a newer stream replaces the older."""

    __slots__ = ("incarnation", "number", "ready", "replaced")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number  # from 0
        self.incarnation = ""  # incarnation of the newest supervisor
        self.replaced: set[str] = set()  # incarnations that a newer one has replaced
        self.ready: NodeReady | None = None  # newest report of this node while it waits for a life


class _Group:
    def __init__(self, name: str, nodes: int) -> None:
        self.name = name  # group id
        self.nodes = [_Node(n) for n in range(nodes)]  # by node
        self.attempt = -1  # attempt of the newest life that any node knows
        self.life: _Life | None = None  # newest life, until every node is accounted for
        self.past: dict[str, tuple[int, str]] = {}  # token -> code and reason of the newest past lives
        self.stopped: tuple[int, str] | None = None  # why no life is begun any more: a node is done, or all finished
        self.waits_since: float | None = None  # when the group began to wait; None: it does not wait
        self.noted = ""  # reason for the wait that was logged last


class GangCoordinator:
    """State machine of the lives of groups over several nodes.

    `make_token` returns a fresh life token; `gone_grace` is the number of seconds for which a stream may be away.
    """

    def __init__(self, make_token: Callable[[], str], gone_grace: float = TIMING.gone_grace) -> None:
        self._make_token = make_token  # passed in, because tokens are random and a machine is not
        self._gone_grace = gone_grace  # seconds
        self._groups: dict[str, _Group] = {}  # by group id
        self._sessions: dict[int, tuple[_Group, _Node]] = {}  # newest stream of each node

    def __repr__(self) -> str:
        return f"GangCoordinator({'; '.join(self.waits_for(name) or f'group {name} runs' for name in self._groups)})"

    def status(self) -> dict[str, dict[str, object]]:
        """Return a JSON-able status of each group over several nodes."""
        return {
            g.name: {
                "nodes": len(g.nodes),
                "attempt": max(0, g.attempt),
                "life": g.life.token if g.life else "",
                "waits_for": self.waits_for(g.name),
            }
            for g in self._groups.values()
        }

    def waits_for(self, name: str) -> str:
        """Return why no life of this group can begin, a clause for people; empty: one runs, or none is wanted."""
        group = self._groups[name]
        if group.stopped is not None or (group.life is not None and group.life.over is None):
            return ""
        ending = [] if group.life is None else [s for s in group.nodes if group.life.runs_on(s.number)]
        missing = [s for s in group.nodes if s.stream is None]
        unready = [s for s in group.nodes if s.stream is not None and s.ready is None and s not in ending]
        what = [_named(missing, "to come" if group.attempt < 0 else "to come back")]
        what += [_named([s for s in ending if s not in missing], "to end its part"), _named(unready, "to be ready")]
        return f"group {name} waits for {' and '.join(w for w in what if w)}"

    def handle(self, event: NodeEvent, now: float) -> list[NodeEffect]:
        """Handle one event at `now` (monotonic seconds) and return the effects that the shell must carry out."""
        if isinstance(event, Tick):
            return [effect for group in self._groups.values() for effect in self._settle(group, now)]
        if isinstance(event, NodeHere):
            return self._on_here(event, now)
        place = self._sessions.get(event.session)
        if place is None:  # the stream has been replaced or refused
            return []
        effects = self._hear(*place, event, now)
        return [*effects, *self._settle(place[0], now)]

    # --- hearing -------------------------------------------------------------------------------------------------------

    def _on_here(self, event: NodeHere, now: float) -> list[NodeEffect]:
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = _Group(event.group, event.nodes)
        if event.nodes != len(group.nodes):
            text = (
                f"Node {event.node} of group {group.name} was told that the group has {event.nodes} nodes, the others"
            )
            return [RefuseNode(event.session, f"{text} {len(group.nodes)}; give all of them the same --nodes.")]
        node = group.nodes[event.node]
        if event.incarnation in node.replaced:
            text = f"Another supervisor has taken over node {node.number} of group {group.name}, on {node.host}."
            return [RefuseNode(event.session, text)]
        effects: list[NodeEffect] = []
        if node.stream is not None:
            effects.append(CloseStream(node.stream))
            self._drop(node, node.stream, now)
        if node.incarnation not in ("", event.incarnation):
            effects += self._replace(group, node)
        node.arrive(event.session, event.host, now)
        node.incarnation, node.ready = event.incarnation, None  # the supervisor reports its state again
        self._sessions[event.session] = (group, node)
        if group.stopped is not None and node.finished is None:
            effects.append(SendStop(event.session, *group.stopped))
        return [*effects, *self._settle(group, now)]

    def _drop(self, node: _Node, session: int, now: float) -> None:
        """Forget a stream that has ended or was replaced, and with it the life that the node was ready for."""
        del self._sessions[session]
        node.leave(session, now)
        node.ready = None

    def _replace(self, group: _Group, node: _Node) -> list[NodeEffect]:
        """Record that a newer supervisor has come: it runs nothing, and it is unknown what the old one still runs."""
        node.replaced.add(node.incarnation)
        node.finished = None
        life = group.life
        if life is None or not life.runs_on(node.number):
            return []
        life.unproven.add(node.number)
        why = f"the supervisor of node {node.number} was started again"
        return [] if life.over is not None else self._end(group, life, _LOST, why)

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
        life = group.life
        if life is None or not life.runs_on(node.number):
            return []
        if life.over is None and life.meeting:  # the order to begin was lost with the earlier stream
            node.ready = None
            return [SendBegin(event.session, life.attempt, life.token, life.meeting)]
        return self._runs_nothing(group, life, node, f"node {node.number} did not begin with the others")

    def _on_started(self, group: _Group, event: NodeStarted, now: float) -> list[NodeEffect]:
        effects = self._known(group, event, now)
        life = group.life
        if life is not None and life.token == event.life:
            return effects if life.over is None else [*effects, SendLifeOver(event.session, life.token, *life.over)]
        over = group.past.get(event.life, (_LOST, "another life of the group has been begun"))
        return [*effects, SendLifeOver(event.session, event.life, *over)]

    def _on_ended(self, group: _Group, node: _Node, event: NodeEnded, now: float) -> list[NodeEffect]:
        effects = self._known(group, event, now)
        life = group.life
        if life is None or life.token != event.life:
            over = group.past.get(event.life, (event.code or _LOST, event.reason))
            return [*effects, SendLifeOver(event.session, event.life, *over)]
        life.ended.add(node.number)
        if event.code == 0:
            life.well.add(node.number)
        if life.over is not None:
            return [*effects, SendLifeOver(event.session, life.token, *life.over)]
        if event.code != 0:
            effects += self._end(group, life, event.code, event.reason)
        elif len(life.well) == len(group.nodes):
            effects += self._end(group, life, 0, "")
        return effects

    def _on_done(self, group: _Group, node: _Node, event: NodeDone) -> list[NodeEffect]:
        node.finished = event.code, event.sentence
        effects: list[NodeEffect] = []
        life = group.life
        if life is not None and not (event.code == 0 and node.number in life.well):
            effects += self._runs_nothing(group, life, node, f"node {node.number} stopped: {event.sentence}")
        if group.stopped is None:
            group.stopped = (event.code, f"node {node.number} stopped: {event.sentence}")
            effects += [
                SendStop(s.stream, *group.stopped) for s in group.nodes if s.stream is not None and s.finished is None
            ]
        return effects

    def _known(self, group: _Group, event: NodeStarted | NodeEnded, now: float) -> list[NodeEffect]:
        """Remember the attempt number, and take over a life that an earlier lighthouse has begun."""
        group.attempt = max(group.attempt, event.attempt)
        if group.life is not None or event.life in group.past or group.stopped is not None:
            return []
        life = group.life = _Life(event.attempt, event.life, "", now)
        effects: list[NodeEffect] = [LifeStarted(group.name, event.attempt, event.life)]
        for s in group.nodes:
            if s.ready is not None:  # the node came to us before and knows nothing of this life
                effects += self._runs_nothing(group, life, s, f"node {s.number} is not part of it")
        return effects

    def _runs_nothing(self, group: _Group, life: _Life, node: _Node, why: str) -> list[NodeEffect]:
        """Record that the node runs nothing. This confirms the end there only if this lighthouse began the life."""
        if life.runs_on(node.number):
            (life.ended if life.meeting else life.unproven).add(node.number)
        return [] if life.over is not None else self._end(group, life, _LOST, why)

    # --- deciding ------------------------------------------------------------------------------------------------------

    def _end(self, group: _Group, life: _Life, code: int, reason: str) -> list[NodeEffect]:
        life.over = (code, reason)
        return [
            SendLifeOver(s.stream, life.token, code, reason)
            for s in group.nodes
            if s.stream is not None and s.finished is None
        ]

    def _settle(self, group: _Group, now: float) -> list[NodeEffect]:
        """Return the effects that follow from the group's present state, independent of the event."""
        effects: list[NodeEffect] = []
        life = group.life
        if life is not None and life.over is None:
            effects += self._miss(group, life, now)
        if life is not None and not any(life.runs_on(s.number) for s in group.nodes):
            effects += self._close(group, life)
        if group.life is None and group.stopped is None and all(s.ready for s in group.nodes):
            effects += self._begin(group, now)
        return [*effects, *self._note_wait(group, now)]

    def _miss(self, group: _Group, life: _Life, now: float) -> list[NodeEffect]:
        """End a life if the supervisor of one of its parts has been away for longer than the grace."""
        for s in group.nodes:
            missed = min(s.absent_for(now), now - life.since)
            if missed >= self._gone_grace and life.runs_on(s.number):
                where = f" on {s.host}" if s.host else ""
                return self._end(group, life, _LOST, f"the supervisor of node {s.number}{where} is gone")
        return []

    def _close(self, group: _Group, life: _Life) -> list[NodeEffect]:
        """Close a life of which every node is accounted for, and report its end if all have confirmed it."""
        assert life.over is not None
        group.life = None
        group.past[life.token] = life.over
        while len(group.past) > _REMEMBERED:
            del group.past[next(iter(group.past))]
        effects: list[NodeEffect] = []
        if life.over[0] == 0 and group.stopped is None:
            group.stopped = (0, f"group {group.name} has finished already")
            # these supervisors were restarted after their node's part had finished
            effects += [SendStop(s.ready.session, *group.stopped) for s in group.nodes if s.ready is not None]
        if not life.unproven:
            effects.append(LifeExited(group.name, life.attempt, life.token, *life.over))
        return effects

    def _begin(self, group: _Group, now: float) -> list[NodeEffect]:
        ready = [s.ready for s in group.nodes if s.ready is not None]
        group.attempt = max(group.attempt + 1, *(r.attempt for r in ready))
        life = group.life = _Life(group.attempt, self._make_token(), ready[0].meeting, now)
        for node in group.nodes:
            node.ready = None
        begins = [SendBegin(r.session, life.attempt, life.token, life.meeting) for r in ready]
        return [LifeStarted(group.name, life.attempt, life.token), *begins]

    def _note_wait(self, group: _Group, now: float) -> list[NodeEffect]:
        """Return a line for the log when a group has waited for a while, once per reason."""
        reason = self.waits_for(group.name)
        if not reason:
            group.waits_since, group.noted = None, ""
        elif group.waits_since is None:
            group.waits_since = now
        elif now - group.waits_since >= _NOTE_WAIT_AFTER and reason != group.noted:
            group.noted = reason
            return [Note("undecided", reason[0].upper() + reason[1:] + ".")]
        return []


def _named(nodes: list[_Node], what: str) -> str:
    """Return a clause such as ``nodes 1 and 3 to come``; empty for no nodes."""
    numbers = [str(n.number) for n in nodes]
    return f"{'node' if len(numbers) == 1 else 'nodes'} {' and '.join(numbers)} {what}" if numbers else ""

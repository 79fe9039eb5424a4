"""Groups over several nodes: events in, effects compared; and random schedules of several nodes, streams and lighthouses."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchft_x.core.job.multi_node import GangCoordinator
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

MEETING = "host0:1234"


def tokens() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"L{next(numbers)}"


class Scene:
    """Node k of group g speaks on session k + 1. Time only moves when told."""

    def __init__(self, nodes: int = 2, *, here: tuple[int, ...] = ()) -> None:
        self.nodes = nodes
        self.machine = GangCoordinator(tokens(), gone_grace=3.0)
        self.now = 0.0
        for node in here:
            self.here(node)

    @property
    def waits_for(self) -> str:
        found = repr(self.machine).removeprefix("GangCoordinator(").removesuffix(")")
        return "" if found == "group g runs" else found

    def see(self, event: NodeEvent) -> list[NodeEffect]:
        return self.machine.handle(event, self.now)

    def tick(self, now: float) -> list[NodeEffect]:
        self.now = now
        return self.see(Tick())

    def here(self, node: int, session: int | None = None, incarnation: str = "", nodes: int = 0) -> list:
        name = incarnation or f"i{node}"
        return self.see(SupervisorHere("g", f"host{node}", node, nodes or self.nodes, session or node + 1, name))

    def ready(self, node: int, attempt: int = 0, session: int | None = None) -> list:
        return self.see(NodeReady(session or node + 1, attempt, MEETING if node == 0 else ""))

    def started(self, node: int, token: str = "L0", attempt: int = 0, session: int | None = None) -> list:
        return self.see(NodeStarted(session or node + 1, attempt, token))

    def ended(self, node: int, code: int = 1, token: str = "L0", session: int | None = None) -> list:
        return self.see(NodeEnded(session or node + 1, 0, token, code, f"why{node}"))

    def begin(self) -> None:
        """All nodes run L0."""
        for n in range(self.nodes):
            assert self.here(n) == []
        for n in range(self.nodes):
            effects = self.ready(n)
        assert effects[0] == AttemptStarted("g", 0, "L0")
        for n in range(self.nodes):
            assert self.started(n) == []


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.begin()
    return made


def test_the_first_bad_end_makes_the_attempt_over_and_the_last_confirmation_reports_it(scene: Scene) -> None:
    over = [SendAttemptOver(1, "L0", 9, "why1"), SendAttemptOver(2, "L0", 9, "why1")]
    assert scene.ended(1, 9) == over
    assert scene.ready(1, 1) == []  # not before node 0 has ended, too
    assert scene.ended(0, -9) == [SendAttemptOver(1, "L0", 9, "why1"), AttemptExited("g", 0, "L0", 9, "why1")]
    assert scene.ready(0, 1) == [
        AttemptStarted("g", 1, "L1"),
        SendBegin(1, 1, "L1", MEETING),
        SendBegin(2, 1, "L1", MEETING),
    ]


@pytest.mark.parametrize(("code", "why"), [(0, ""), (3, "why1")])
def test_an_attempt_that_ended_well_on_one_node_waits_for_the_others(scene: Scene, code: int, why: str) -> None:
    assert scene.ended(0, 0) == []
    assert scene.ended(1, code) == [
        SendAttemptOver(1, "L0", code, why),
        SendAttemptOver(2, "L0", code, why),
        AttemptExited("g", 0, "L0", code, why),
    ]
    if code == 0:
        assert scene.see(NodeDone(1, 0, "")) == []
        assert scene.see(NodeDone(2, 0, "")) == []


def test_a_stream_away_for_longer_than_the_grace_makes_the_attempt_over_but_proves_nothing(scene: Scene) -> None:
    gone = SendAttemptOver(1, "L0", -9, "the supervisor of node 1 on host1 is gone")
    scene.see(NodeGone(2))
    assert scene.tick(2.9) == []
    assert scene.tick(3.0) == [gone]
    assert scene.ended(0, -9) == [gone]
    # it comes back, and is told at once
    assert scene.here(1, session=7) == []
    assert scene.started(1, session=7) == [SendAttemptOver(7, "L0", -9, "the supervisor of node 1 on host1 is gone")]
    (_, exited) = scene.ended(1, -9, session=7)
    assert isinstance(exited, AttemptExited)


def test_who_is_away_is_missed_only_while_its_part_runs_and_is_not_told_to_stop(scene: Scene) -> None:
    scene.see(NodeGone(2))
    scene.now = 2.0
    assert scene.here(1, session=7) == []  # within the grace
    assert scene.started(1, session=7) == []
    assert scene.tick(60.0) == []
    scene.ended(1, 0, session=7)
    scene.see(NodeGone(7))
    assert scene.tick(120.0) == []
    scene = Scene(here=(0, 1))
    scene.see(NodeGone(2))
    assert scene.see(NodeDone(1, 1, "x")) == []


def test_the_predecessor_and_a_node_with_another_idea_of_the_group_are_refused(scene: Scene) -> None:
    scene.here(1, session=7, incarnation="new")
    (refused,) = scene.here(1, session=8)
    assert refused == Refuse("Another supervisor has taken over node 1 of group g, on host1.", 8)
    (refused,) = scene.here(1, session=9, incarnation="newer", nodes=3)
    assert "3 nodes, the others 2" in refused.sentence


def test_why_an_attempt_ended_and_why_a_group_was_stopped_stands() -> None:
    scene = Scene()
    scene.begin()
    scene.ended(0, 5)
    assert scene.here(1, session=7, incarnation="new") == [CloseSession(2)]
    assert scene.started(0) == [SendAttemptOver(1, "L0", 5, "why0")]
    scene = Scene()
    scene.begin()
    scene.ended(0, 0)
    assert scene.here(0, session=6, incarnation="new") == [CloseSession(1)]
    assert scene.ready(0, session=6) == []  # its part had finished: it waits for the others
    assert SendStop(6, 0, "group g has finished already") in scene.ended(1, 0)
    scene = Scene(here=(0, 1))
    for node in (0, 1):
        scene.started(node, "old")
    scene.ended(0, 0, "old")
    scene.see(NodeDone(1, 0, "finished"))
    assert SendAttemptOver(2, "old", 0, "") in scene.ended(1, 0, "old")
    assert scene.here(1, session=7, incarnation="new") == [CloseSession(2), SendStop(7, 0, "node 0 stopped: finished")]


def test_a_newer_stream_of_the_same_supervisor_replaces_the_older(scene: Scene) -> None:
    assert scene.here(1, session=7) == [CloseSession(2)]
    assert scene.ended(1, 1) == []  # said on the old stream: the new one says it again, or not
    assert scene.see(NodeGone(2)) == []


def test_a_node_that_was_sent_the_order_again_waits_for_no_other_attempt() -> None:
    scene = Scene(here=(0, 1))
    scene.ready(0)
    scene.ready(1)
    scene.see(NodeGone(2))
    scene.here(1, session=7)
    assert scene.ready(1, session=7) == [SendBegin(7, 0, "L0", MEETING)]  # the order was lost
    scene.started(1, session=7)
    scene.ended(0, 1)
    scene.ended(1, -9, session=7)
    assert scene.ready(0, 1) == []
    assert scene.ready(1, 1, session=7)[0] == AttemptStarted("g", 1, "L1")


def test_a_node_that_never_began_has_confirmed_when_it_is_ready_again(scene: Scene) -> None:
    scene = Scene(here=(0, 1))
    scene.ready(0)
    scene.ready(1)
    scene.started(0)
    scene.see(NodeGone(2))
    scene.ended(0, 1)
    scene.here(1, session=7)
    assert scene.ready(1, session=7) == [AttemptExited("g", 0, "L0", 1, "why0")]


def test_a_supervisor_that_was_started_again_gets_the_groups_number_and_proves_nothing(scene: Scene) -> None:
    scene.see(NodeGone(2))
    again = "the supervisor of node 1 was started again"
    assert scene.here(1, session=7, incarnation="new") == [SendAttemptOver(1, "L0", -9, again)]
    assert scene.ready(1, 0, session=7) == []
    assert scene.ended(0, -9) == [SendAttemptOver(1, "L0", -9, again)]  # and no AttemptExited
    begun = scene.ready(0, 1)
    assert begun == [AttemptStarted("g", 1, "L1"), SendBegin(1, 1, "L1", MEETING), SendBegin(7, 1, "L1", MEETING)]


def test_a_group_that_was_stopped_begins_no_attempt_whoever_is_ready(scene: Scene) -> None:
    scene.ended(0, 1)
    stop = (1, "node 0 stopped: no restarts left")
    assert scene.see(NodeDone(1, 1, "no restarts left")) == [SendStop(2, *stop)]
    assert scene.here(0, session=8) == [CloseSession(1)]  # it knows
    for node, session in ((0, 9), (1, 7)):
        assert scene.here(node, session, incarnation=f"new{node}")[-1] == SendStop(session, *stop)
        assert scene.ready(node, 1, session) == []
        assert scene.started(node, "other", 3, session)[0] == SendAttemptOver(
            session, "other", -9, "another attempt of the group has been begun"
        )
    assert scene.waits_for == ""
    scene.machine.retain(["g"])
    assert scene.here(0, 10, incarnation="newer")[-1] == SendStop(10, *stop)


def test_a_group_that_was_stopped_begins_anew_once_the_job_no_longer_has_it(scene: Scene) -> None:
    scene.machine.retain([])
    assert scene.ended(0, 1)[0] == SendAttemptOver(1, "L0", 1, "why0")  # it had not stopped yet
    scene.see(NodeDone(1, 1, "no restarts left"))
    scene.machine.retain([])
    late = scene.see(NodeDone(2, 1, "told to"))  # a report of the forgotten group
    assert late == [AttemptExited("g", 0, "L0", 1, "why0")]
    for node, session in ((0, 9), (1, 10)):
        assert scene.here(node, session, incarnation=f"new{node}") == []
    assert scene.ready(0, 1, session=9) == []
    assert scene.ready(1, 1, session=10)[0] == AttemptStarted("g", 1, "L1")


@pytest.mark.parametrize("code", [0, 143])
def test_a_node_ends_the_attempt_unless_it_has_finished_its_part_and_is_content(code: int) -> None:
    in_the_middle = Scene()
    in_the_middle.begin()
    assert in_the_middle.see(NodeDone(2, code, "told to")) == [
        SendAttemptOver(1, "L0", -9, "node 1 stopped: told to"),
        SendStop(1, code, "node 1 stopped: told to"),
    ]
    finished = Scene()
    finished.begin()
    finished.ended(1, 0)
    over = [SendAttemptOver(1, "L0", -9, "node 1 stopped: told to")] if code else []
    assert finished.see(NodeDone(2, code, "told to")) == [*over, SendStop(1, code, "node 1 stopped: told to")]


def test_an_attempt_taken_over_ends_if_a_node_does_not_come_or_does_not_know_it() -> None:
    scene = Scene(here=(0,))
    scene.started(0, "old", 4)
    assert scene.tick(3.0) == [SendAttemptOver(1, "old", -9, "the supervisor of node 1 is gone")]
    scene.here(1)
    scene.ready(1, 0)
    assert scene.ended(0, -9, "old") == [SendAttemptOver(1, "old", -9, "the supervisor of node 1 is gone")]  # no proof
    scene = Scene(here=(1,))
    scene.see(NodeGone(2))  # it was away before the attempt was known, and has the whole grace
    scene.now = 10.0
    scene.here(0)
    assert scene.started(0) == [AttemptStarted("g", 0, "L0")]
    assert scene.tick(12.9) == []
    assert scene.tick(13.0)[0] == SendAttemptOver(1, "L0", -9, "the supervisor of node 1 on host1 is gone")


def test_a_node_that_is_ready_has_no_part_in_an_attempt_taken_over() -> None:
    scene = Scene(here=(0,))
    scene.started(0, "old", 4)
    scene.here(1)
    over = SendAttemptOver(1, "old", -9, "node 1 did not begin with the others")
    assert scene.ready(1) == [over, SendAttemptOver(2, "old", -9, "node 1 did not begin with the others")]
    assert scene.ended(0, -9, "old") == [over]  # another supervisor of node 1 may have run it: no proof


def test_a_confirmation_stands_when_its_node_stops() -> None:
    scene = Scene(here=(0, 1))
    scene.started(0, "old", 4)
    scene.started(1, "old", 4)
    scene.ended(1, 1, "old")
    scene.see(NodeDone(2, 1, "no restarts left"))
    assert scene.ended(0, -9, "old")[-1] == AttemptExited("g", 4, "old", 1, "why1")


def test_the_number_of_an_attempt_that_is_over_is_not_used_again() -> None:
    scene = Scene(here=(0, 1))
    scene.started(0, "old", 4)
    scene.started(1, "old", 4)
    scene.ended(0, 1, "old")
    scene.ended(1, 1, "old")
    assert scene.waits_for == "group g waits for nodes 0 and 1 to be ready"
    scene.ready(0, 0)
    assert scene.ready(1, 0)[0] == AttemptStarted("g", 5, "L0")


def test_what_was_said_on_an_older_stream_counts_no_more() -> None:
    scene = Scene(here=(0, 1))
    scene.ready(0)
    scene.here(0, session=7)
    assert scene.ready(1, 5) == []
    assert scene.ready(0, session=7)[1] == SendBegin(7, 5, "L0", MEETING)  # the highest number that any node knows


def test_who_has_gone_is_ready_no_more() -> None:
    scene = Scene(here=(0, 1))
    scene.ready(0)
    scene.see(NodeGone(1))
    assert scene.ready(1) == []


def test_the_end_of_another_attempt_does_not_end_this_one(scene: Scene) -> None:
    assert scene.started(1, "other", 7) == [
        SendAttemptOver(2, "other", -9, "another attempt of the group has been begun")
    ]
    assert scene.ended(1, 3, "other") == [SendAttemptOver(2, "other", 3, "why1")]
    assert scene.ended(1, 0, "other") == [SendAttemptOver(2, "other", -9, "why1")]
    assert scene.waits_for == ""  # L0 runs


def test_the_ends_of_eight_attempts_are_remembered(scene: Scene) -> None:
    for number in range(9):
        scene.ended(0, 10 + number, f"L{number}")
        scene.ended(1, 10 + number, f"L{number}")
        scene.ready(0, number + 1)
        scene.ready(1, number + 1)
    assert scene.ended(1, 1, "L0") == [SendAttemptOver(2, "L0", 1, "why1")]  # forgotten: as it says itself
    for number in range(1, 9):
        assert scene.ended(1, 1, f"L{number}") == [SendAttemptOver(2, f"L{number}", 10 + number, "why0")]


def test_a_group_that_waits_says_for_whom() -> None:
    scene = Scene(3)
    scene.here(0)
    scene.ready(0)
    scene.here(1)
    assert scene.waits_for == "group g waits for node 2 to come and node 1 to be ready"
    assert scene.tick(4.9) == []
    assert scene.tick(5.0) == [Note("undecided", "Group g waits for node 2 to come and node 1 to be ready.")]
    assert scene.see(Tick()) == []  # said once
    scene.ready(1)
    scene.here(2)
    scene.ready(2)
    assert scene.waits_for == ""
    scene.ended(0)
    assert scene.waits_for == "group g waits for nodes 1 and 2 to end its part and node 0 to be ready"
    assert "waits for nodes 1 and 2" in repr(scene.machine)
    scene.see(NodeGone(2))
    assert scene.waits_for == (
        "group g waits for node 1 to come back and node 2 to end its part and node 0 to be ready"
    )


def test_what_is_waited_for_is_said_again_when_it_is_waited_for_again() -> None:
    scene = Scene(2)
    scene.begin()
    for token in ("L0", "L1"):
        for node in (0, 1):
            scene.ended(node, token=token)
        scene.ready(0)
        scene.now += 10.0
        assert Note("undecided", "Group g waits for node 1 to be ready.") in scene.see(Tick())
        scene.ready(1)


# --- random schedules --------------------------------------------------------------------------------------------------


class Node:
    """One supervisor process with its client, as launch.supervisor.coordination and rpc.supervisor_client are."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node
        self.incarnation = f"i{next(world.numbers)}"
        self.session: int | None = None
        self.up: list[NodeEvent] = []  # on its way
        self.down: list[NodeEffect] = []
        self.reports: dict[str, tuple] = {}  # by kind; the arguments after the session
        self.runs: tuple[int, str] | None = None  # number and token, from the order to begin until the last process
        self.waits = ""  # token of the attempt of which it has not heard yet how it ended for the group
        self.attempt = 0
        self.dead = False
        self.report("ready", 0, MEETING if node == 0 else "")

    def report(self, kind: str, *said: object) -> None:
        self.reports.pop(kind, None)
        self.reports[kind] = said
        self.send(kind)

    def send(self, kind: str) -> None:
        kinds = {"ready": NodeReady, "started": NodeStarted, "ended": NodeEnded, "done": NodeDone}
        if self.session is not None:
            self.up.append(kinds[kind](self.session, *self.reports[kind]))

    def connect(self) -> None:
        if self.session is None and not self.dead:
            self.session = next(self.world.numbers)
            self.world.serves[self.session] = self
            self.up = [SupervisorHere("g", "h", self.node, self.world.size, self.session, self.incarnation)]
            for kind in self.reports:
                self.send(kind)

    def cut(self, *, noticed: bool) -> None:
        """The stream breaks. The lighthouse notices at once, or later."""
        if self.session is not None:
            gone, self.session, self.up, self.down = self.session, None, [], []
            del self.world.serves[gone]
            if noticed:
                self.world.see(NodeGone(gone))
            else:
                self.world.unnoticed.append(gone)

    def end(self, code: int) -> None:
        """Its part ends."""
        if self.runs is not None:
            (attempt, token), self.runs, self.waits = self.runs, None, self.runs[1]
            self.attempt = attempt + 1
            if code == 0:
                self.world.finished.setdefault(token, set()).add(self.node)
            self.report("ended", attempt, token, code, "why")

    def stop(self, code: int) -> None:
        self.runs, self.waits = None, ""
        self.reports.pop("ready", None)
        if "done" not in self.reports:
            self.report("done", code, "told")

    def receive(self, effect: NodeEffect) -> None:
        if isinstance(effect, SendBegin) and "ready" in self.reports:
            assert self.runs is None, "two attempts at once on one node"
            assert effect.attempt >= self.attempt
            del self.reports["ready"]
            self.reports.pop("ended", None)
            self.runs = (effect.attempt, effect.attempt_token)
            self.report("started", effect.attempt, effect.attempt_token)
        elif isinstance(effect, SendAttemptOver):
            if self.runs is not None and self.runs[1] == effect.attempt_token:
                assert effect.code != 0, "a part that runs was told that it has finished well"
                self.end(-9)
            if self.waits == effect.attempt_token:
                self.waits = ""
                if effect.code == 0:
                    self.stop(0)
                elif "done" not in self.reports:
                    self.report("ready", self.attempt, MEETING if self.node == 0 else "")
        elif isinstance(effect, (SendStop, Refuse)):
            self.stop(1)
        elif isinstance(effect, CloseSession):
            self.cut(noticed=True)


class World:
    def __init__(self, size: int) -> None:
        self.size = size
        self.numbers = itertools.count(1)
        self.make_token = tokens()  # also over restarts of the lighthouse
        self.serves: dict[int, Node] = {}  # session -> who holds the other end
        self.unnoticed: list[int] = []  # sessions whose end the lighthouse has not seen
        self.machine = GangCoordinator(self.make_token, gone_grace=3.0)
        self.now = 0.0
        self.attempts: dict[str, int] = {}  # token -> number
        self.heard = -1  # highest number of an attempt that this lighthouse has begun or been told of
        self.finished: dict[str, set[int]] = {}  # token -> nodes whose part ended well
        self.known: set[str] = set()  # incarnations this lighthouse has met
        self.zombies: list[Node] = []  # cut off and replaced, but alive
        self.nodes = [Node(self, n) for n in range(size)]

    def see(self, event: NodeEvent) -> None:
        if isinstance(event, SupervisorHere):
            self.known.add(event.incarnation)
        if isinstance(event, (NodeStarted, NodeEnded)) and event.session in self.machine._sessions:
            self.heard = max(self.heard, event.attempt)
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, SendBegin):
                assert self.attempts.setdefault(effect.attempt_token, effect.attempt) == effect.attempt
                # A lighthouse that has forgotten can't go on from an attempt that no supervisor here has begun.
                assert effect.attempt >= self.heard, "attempts only grow"
                self.heard = effect.attempt
            elif isinstance(effect, AttemptExited):
                running = {n.runs[1] for n in self.everybody() if n.runs}
                assert effect.attempt_token not in running, "not all have confirmed"
            if isinstance(effect, (SendBegin, SendAttemptOver, SendStop, Refuse, CloseSession)):
                node = self.serves.get(effect.session)
                if node is not None:
                    node.down.append(effect)
        attempts = {n.runs[1] for n in self.nodes if n.runs}
        assert len(attempts) <= 1, f"two attempts at once: {attempts}"

    def everybody(self) -> list[Node]:
        return [*self.nodes, *self.zombies]

    # --- what may happen -----------------------------------------------------------------------------------------------

    def deliver_up(self, n: Node) -> None:
        if n.up:
            self.see(n.up.pop(0))

    def deliver_down(self, n: Node) -> None:
        if n.down:
            n.receive(n.down.pop(0))

    def connect(self, n: Node) -> None:
        n.connect()

    def flow(self, _n: Node) -> None:
        """All is well for a moment."""
        for n in self.nodes:
            n.connect()
            for _ in range(4):
                self.deliver_up(n)
                self.deliver_down(n)

    def cut(self, n: Node) -> None:
        n.cut(noticed=True)

    def cut_unnoticed(self, n: Node) -> None:
        n.cut(noticed=False)

    def notice(self, _n: Node) -> None:
        if self.unnoticed:
            self.see(NodeGone(self.unnoticed.pop(0)))

    def fail(self, n: Node) -> None:
        n.end(1)

    def finish(self, n: Node) -> None:
        n.end(0)

    def kill(self, n: Node) -> None:
        """kill -9 of the supervisor; another one comes."""
        if n in self.nodes:
            n.cut(noticed=False)
            n.dead, n.runs = True, None
            self.nodes[n.node] = Node(self, n.node)

    def replace(self, n: Node) -> None:
        """The supervisor is cut off for good, so it seems, and another one comes."""
        if n in self.nodes and n.incarnation in self.known:
            n.cut(noticed=False)
            self.zombies.append(n)
            self.nodes[n.node] = Node(self, n.node)

    def zombie(self, n: Node) -> None:
        """One that was replaced can speak again, a little."""
        for z in self.zombies[:1]:
            z.connect()
            for _ in range(4):
                self.deliver_up(z)
                self.deliver_down(z)

    def tick(self, _n: Node) -> None:
        self.now += 2.0
        self.see(Tick())

    def lighthouse(self, _n: Node) -> None:
        """It is restarted, and the predecessors it knew of are gone with it."""
        for n in self.everybody():
            n.cut(noticed=False)
        self.unnoticed, self.known = [], set()
        for z in self.zombies:
            z.dead, z.runs = True, None
        self.zombies = []
        self.machine = GangCoordinator(self.make_token, gone_grace=3.0)
        self.heard = -1

    def stop(self, n: Node) -> None:
        """SIGTERM for one supervisor."""
        n.stop(143)

    def settle(self) -> None:
        """No more faults."""
        for _ in range(30):
            while self.unnoticed:
                self.notice(self.nodes[0])
            for z in self.zombies:
                z.cut(noticed=False)
            self.flow(self.nodes[0])
            self.tick(self.nodes[0])


STEPS = [
    *["deliver_up", "deliver_down"] * 4,
    *["flow"] * 3,
    *["connect", "connect", "cut", "cut_unnoticed", "notice", "fail", "fail", "finish", "kill", "replace"],
    *["zombie", "tick", "lighthouse"],
]
indexes = st.integers(0, 2)
schedules = st.lists(st.tuples(st.sampled_from(STEPS), indexes), max_size=80)
stops = st.one_of(st.none(), indexes)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 3), st.booleans(), schedules, stops)
def test_any_schedule_leads_to_one_attempt_on_all_nodes(
    size: int, running: bool, schedule: list[tuple[str, int]], stopped: int | None
) -> None:
    world = World(size)
    if running:
        world.settle()
    for what, index in schedule:
        getattr(world, what)(world.nodes[index % size])
    if stopped is not None:
        world.stop(world.nodes[stopped % size])
    world.settle()
    if any("done" in n.reports for n in world.nodes):
        assert all("done" in n.reports for n in world.nodes)
        assert not any(n.runs for n in world.nodes)
        return
    (run,) = {n.runs for n in world.nodes if n.runs}
    for n in world.nodes:  # a part that has finished well waits for the others
        assert n.runs or n.node in world.finished.get(run[1], ())

"""All scenarios. Times are in seconds. How to read and to play them: docs/dev/simulator.md."""

from __future__ import annotations

from typing import Any

from tests.scenario.values import (
    EVERYBODY,
    LIGHTHOUSE,
    THE_LIGHTHOUSE,
    Action,
    AtStep,
    Cut,
    Deed,
    Gapless,
    Join,
    Kill,
    Later,
    Leave,
    LongestStall,
    Lose,
    Moment,
    MostAttempts,
    MostDropped,
    Pause,
    Scenario,
    Start,
    Together,
    When,
    Wish,
    supervisor,
    trainer,
)  # fmt: skip


def at(moment: Moment, *actions: Action) -> list[Deed]:
    """Return the deeds that do these actions at one moment, in this order."""
    return [Deed(moment if number == 0 else Later(0), action) for number, action in enumerate(actions)]


def gapless(*groups: str) -> list[Gapless]:
    return [Gapless(group) for group in groups]


def no_restart(*groups: str) -> list[MostAttempts]:
    return [MostAttempts(group, 1) for group in groups]


def scenario(name: str, *story: list[Deed], expect: list[Wish], **settings: Any) -> Scenario:
    return Scenario(
        name=name, story=tuple(deed for part in story for deed in part), expectations=tuple(expect), **settings
    )


_ALL = (
    # The guide of a cluster's operator (torchft on Slurm): two nodes, one is set DOWN. The other trains alone, from
    # step 21 to 142 there, until the node is back and its trainer has copied the state.
    scenario(
        "alone_meanwhile",
        at(AtStep(21), Lose("g1", 3)),
        at(Together(), Lose("g0", 3)),  # and the other way round: what g1 has copied must be good
        expect=[LongestStall(8)],
        groups=2,
        steps=60,
        heartbeat_timeout=1,
    ),
    # One bad link between two of three groups, which both see the lighthouse: after two failed connects one of the
    # two is left out and the others train on. Before, all three stood for as long as the link was bad.
    scenario(
        "bad_link",
        at(AtStep(12), Cut("g1", "g2", 30)),
        expect=[*no_restart("g0", "g1", "g2"), LongestStall(20)],
        steps=100,
        heartbeat_timeout=1,
        timeout=2,
    ),
    # A group and its supervisor see the others but not the lighthouse, for longer than a lost host is waited for: a
    # partition that is not the same from every side. The others must be able to go on, and it must not train on as if
    # nothing had happened.
    scenario(
        "cut_from_lighthouse",
        at(AtStep(12), Cut("g0", LIGHTHOUSE, 4)),
        expect=[*gapless("g1", "g2"), LongestStall(8)],
    ),
    # Two groups don't see each other, but the lighthouse sees both, for longer than a reduction may take: it can't
    # tell who is to blame. Nothing can be committed by all meanwhile, and all must be well when it is over.
    scenario(
        "cut_from_one_another",
        at(AtStep(12), Cut("g0", "g1", 5)),
        expect=[*no_restart("g2")],
        heartbeat_timeout=1,
        timeout=2,
    ),
    # Cut-off singleton: the only member is cut off from the lighthouse while another comes. The newcomer waits until
    # the other's lease is over; then a new history begins from its own state, and only one survives.
    scenario(
        "cut_off_singleton",
        at(AtStep(10), Cut("g0", LIGHTHOUSE, 8), Join("g1")),
        expect=[],
        groups=1,
        heartbeat_timeout=1,
        lease=3,
        only_simulated="the lease of real processes is two minutes, and can't be set",
    ),
    # One of everything that a person would try first. The job must not care.
    scenario(
        "everything",
        at(AtStep(12), Kill(trainer("g1"))),
        at(Later(0.3), Pause(trainer("g2"), 2)),  # the survivor g0 is alone now
        at(Together(), Cut("g0", LIGHTHOUSE, 2)),
        at(Together(), Cut("g0", "g1", 0.5)),
        at(Together(), Leave("g2")),
        at(Together(), Kill(THE_LIGHTHOUSE)),
        at(Later(1), Start(THE_LIGHTHOUSE)),
        at(Together(), Join("g3")),
        expect=[LongestStall(10)],
        heartbeat_timeout=1,
    ),
    # The newcomer dies while it copies the state. Nobody waits for it, and no half-copied state gets anywhere.
    scenario(
        "kill_during_heal",
        at(AtStep(10), Kill(trainer("g1"))),
        at(When("g1", "heals"), Kill(trainer("g1"))),
        expect=[*no_restart("g0", "g2"), LongestStall(5)],
    ),
    # Kill in the reduction: g2 dies while a step is reduced. Some have the result, some have not.
    scenario(
        "kill_in_reduction",
        at(AtStep(5), Pause(THE_LIGHTHOUSE, 0.001)),
        at(When("g2", "reduces"), Kill(trainer("g2"))),
        at(Together(), Pause(THE_LIGHTHOUSE, 0.001)),
        at(When("g2", "reduces"), Kill(trainer("g2")), Kill(trainer("g1"))),
        expect=[*no_restart("g0"), LongestStall(5)],
        only_simulated="nobody outside a process sees when it begins to reduce",
    ),
    # The plainest fault: a trainer is killed. Both others go on without it within a moment, and lose no step they
    # have committed; it is started again, copies the state and takes part.
    scenario(
        "kill_one",
        at(AtStep(12), Kill(trainer("g1"))),
        expect=[
            *no_restart("g0", "g2"),
            MostDropped(2),
            LongestStall(5),
        ],  # the one in hand, on either side of a commit
    ),
    # A source dies while a newcomer copies from it. The newcomer must not take half a state for a whole one.
    scenario(
        "kill_source",
        at(AtStep(10), Kill(trainer("g1"))),
        at(When("g1", "heals"), Kill(trainer("g0"))),
        expect=[*no_restart("g2"), LongestStall(5)],
    ),
    # A group is told to end (preemption): it says goodbye at a boundary, and costs nobody a step.
    scenario(
        "leave",
        at(AtStep(12), Leave("g2")),
        expect=[*gapless("g0", "g1"), MostDropped(0), LongestStall(3)],
    ),
    # A group leaves while the lighthouse is away: nobody is told. When it is back the group's address refuses
    # connections.
    scenario(
        "leave_without_lighthouse",
        at(AtStep(15), Kill(THE_LIGHTHOUSE), Leave("g2")),
        at(Later(2), Start(THE_LIGHTHOUSE)),
        expect=[*gapless("g0", "g1"), *no_restart("g0", "g1"), MostDropped(2), LongestStall(10)],
    ),
    # The lighthouse dies, and a group's machine with it, so that nobody reports its death. The new lighthouse finds
    # what the old one has written down (R8c): the silent group is missed for the heartbeat timeout, and the others,
    # who hold all of the state, go on without it.
    scenario(
        "lighthouse_and_group",
        at(AtStep(15), Kill(THE_LIGHTHOUSE), Lose("g2", 12)),
        at(Later(0.5), Start(THE_LIGHTHOUSE)),
        expect=[*no_restart("g0", "g1"), MostDropped(3), LongestStall(12)],
    ),
    # The lighthouse is away for longer than a trainer usually waits for a quorum. Nobody gives up meanwhile; the job
    # stands as long as it is away, and no longer.
    scenario(
        "lighthouse_away_a_minute",
        at(AtStep(20), Kill(THE_LIGHTHOUSE)),
        at(Later(65), Start(THE_LIGHTHOUSE)),
        expect=[*gapless("g0", "g1", "g2"), *no_restart("g0", "g1", "g2"), MostDropped(1), LongestStall(70)],
        only_simulated="it takes more than a minute; tests/process/rpc/test_outage.py has it with real processes and short times",
    ),
    # Lighthouse dies at step 20: another starts at the same address. No group dies or loses its state. Within their
    # grants and leases they go on while it is away (R16).
    scenario(
        "lighthouse_back",
        at(AtStep(20), Kill(THE_LIGHTHOUSE)),
        at(Later(2), Start(THE_LIGHTHOUSE)),
        expect=[*gapless("g0", "g1", "g2"), *no_restart("g0", "g1", "g2"), MostDropped(0), LongestStall(8)],
    ),
    # The machine of the first role dies: the lighthouse, and a group with it. The new lighthouse finds what the old
    # one has written down, and the group's supervisor says that it has died: nobody waits for a lease (R8c).
    scenario(
        "lighthouse_dies_with_group",
        at(AtStep(20), Kill(THE_LIGHTHOUSE), Kill(trainer("g2"))),
        at(Later(0.5), Start(THE_LIGHTHOUSE)),
        expect=[*no_restart("g0", "g1"), MostDropped(2), LongestStall(8)],
    ),
    # A bad cable: links break for moments, shorter than any timeout. Nobody is dead, so nobody may be buried: no
    # restart, no step dropped for good, nobody heals.
    scenario(
        "link_flap",
        at(AtStep(8), Cut("g0", LIGHTHOUSE, 0.3)),
        at(Later(0.8), Cut("g0", "g1", 0.3)),
        at(Later(0.8), Cut("g0", EVERYBODY, 0.3)),
        at(Later(0.8), Cut("g2", "g1", 0.3)),
        expect=[*gapless("g0", "g1", "g2"), *no_restart("g0", "g1", "g2"), LongestStall(5)],
        heartbeat_timeout=3,
    ),
    # A trainer hangs for long (stopped, in a debugger). Its supervisor says so, and it counts as lost after 1.5 s;
    # the others go on. When it wakes up it is told, copies the state and takes part. It is the same process as
    # before.
    scenario(
        "long_pause",
        at(AtStep(12), Pause(trainer("g2"), 3)),
        expect=[*gapless("g0", "g1"), *no_restart("g2"), LongestStall(4)],
    ),
    # A machine loses its power: nobody says so, and nothing is refused. What tells is that group and supervisor are
    # silent, for 1.5 s. The others go on; when the machine is back, so is the group.
    scenario(
        "lost_machine",
        at(AtStep(12), Lose("g1", 6)),
        expect=[*gapless("g0", "g2"), LongestStall(4)],
        steps=60,
    ),
    # Newcomer: a fourth group comes at step 7. Nobody drops a step for it.
    scenario(
        "newcomer",
        at(AtStep(7), Join("g3")),
        expect=[*gapless("g0", "g1", "g2"), MostDropped(0), LongestStall(5)],
    ),
    # A hiccup of less than a second: the others wait, and nobody is taken for lost. The lighthouse's own hiccup is
    # nobody's fault either.
    scenario(
        "short_pause",
        at(AtStep(12), Pause(trainer("g2"), 0.7)),
        at(Together(), Pause(THE_LIGHTHOUSE, 0.7)),
        expect=[*gapless("g0", "g1", "g2"), MostDropped(0), LongestStall(3)],
    ),
    # A supervisor dies and takes its trainer along; its scheduler starts it again, which knows nothing of the
    # attempts before.
    scenario(
        "supervisor_killed",
        at(AtStep(8), Kill(trainer("g0"))),  # so that the supervisor is at its second attempt
        at(Together(), Kill(supervisor("g0"))),
        at(Later(1), Start(supervisor("g0"))),
        expect=[*no_restart("g1"), MostAttempts("g0", 3), LongestStall(5)],  # the last supervisor needs one attempt
        groups=2,
    ),
    # Two of three die in the same moment; the third has nobody to vote with and goes on alone.
    scenario(
        "two_at_once",
        at(AtStep(12), Kill(trainer("g0")), Kill(trainer("g1"))),
        expect=[*no_restart("g2"), LongestStall(5)],
    ),
)
STORIES = {one.name: one for one in _ALL}

"""Which silence means what: the limits, the verdict, supervisors' words, announced pauses."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, of
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.failure_detector import Observation, SilenceLimits, StoppedProcess, judge, suspect
from torchft_x.core.membership.supervisors import SupervisorLiveness
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptStarted, SupervisorGone, SupervisorHere
from torchft_x.core.messages.lighthouse import (
    AttemptHalted,
    LighthouseEffect,
    Paused,
    Probe,
    RevokeQuorum,
    SupervisorHeard,
    Suspected,
)
from torchft_x.core.types import AttemptId, State
from torchft_x.errors import ConfigError

L = SilenceLimits()


class TestLimits:
    def test_an_explicit_timeout_is_meant_for_every_kind(self) -> None:
        limits = SilenceLimits.all(3.0)
        assert (limits.alone, limits.host, limits.stopped, limits.for_busy(100.0)) == (3.0, 3.0, 3.0, 3.0)
        LighthouseConfig().check_together()
        assert LighthouseConfig().silence == SilenceLimits.all(None) == L
        for bad in (0.0, -1.0, float("nan")):
            with pytest.raises(ConfigError, match=f"heartbeat_timeout is {bad}; it must be a positive number"):
                SilenceLimits.all(bad)

    def test_signs_of_life_come_often_enough_for_the_limits(self) -> None:
        assert L.supervisor_ping * 4 <= L.host
        assert L.member_ping * 2 <= L.host
        assert L.member_ping * 5 <= L.alone

    @pytest.mark.parametrize(
        ("short", "member", "supervisor"),
        [({"alone": 1.0}, 0.2, 0.2), ({"busy": 1.0}, 0.2, 20.0), ({"host": 1.0}, 0.5, 0.25)],
    )
    def test_the_shortest_limit_says_how_often(self, short: dict[str, float], member: float, supervisor: float) -> None:
        limits = SilenceLimits(**{"alone": 100.0, "busy": 100.0, "host": 100.0, **short})
        assert (limits.member_ping, limits.supervisor_ping) == (member, supervisor)

    @pytest.mark.parametrize(
        ("field", "value"), [("alone", 0.0), ("host", 0.0), ("stopped", 0.0), ("busy", 0.0), ("busy_steps", -1.0)]
    )
    def test_no_limit_is_zero(self, field: str, value: float) -> None:
        with pytest.raises(ConfigError, match=field):
            SilenceLimits(**{field: value})

    @pytest.mark.parametrize(
        ("config", "word"),
        [
            (LighthouseConfig(tick=2.0), "tick is 2 s"),
            (LighthouseConfig(silence=SilenceLimits(stopped=0.05)), "a silence of 0.05 s"),
            (LighthouseConfig(lease=SilenceLimits().member_ping), "lease is 0.75 s"),
            (LighthouseConfig(silence=SilenceLimits.all(0.1)), "tick is 0.1 s"),
            (LighthouseConfig(lease=0.5), "lease is 0.5 s"),
            (LighthouseConfig(lease=10.0, silence=SilenceLimits.all(60.0)), "lease is 10 s"),
        ],
    )
    def test_times_that_contradict_each_other_are_refused(self, config: LighthouseConfig, word: str) -> None:
        with pytest.raises(ConfigError, match=word):
            config.check_together()


class TestJudge:
    @pytest.mark.parametrize(
        ("observation", "word"),
        [
            (Observation(heard=95.1), ""),
            (Observation(heard=95.0), ""),  # at the limit itself it is still waited for
            (Observation(heard=80.0, watched=98.5), "though its supervisor"),
            (Observation(heard=98.5, watched=98.0), ""),
            (Observation(heard=90.0, watched=100.0), ""),
            (Observation(heard=94.9), "silent for 5 s"),
            (Observation(heard=98.4, watched=98.6), ""),
            (Observation(heard=98.6, watched=98.4), ""),
            (Observation(heard=98.4, watched=98.4), "it and its supervisor are silent for 1.5 s"),
            (Observation(heard=90.1, watched=99.9), ""),
            (Observation(heard=89.9, watched=99.9), "silent for 10 s, though its supervisor says that it runs"),
            (Observation(heard=89.9, watched=99.9, longest_step=3.0), ""),
            (Observation(heard=84.9, watched=99.9, longest_step=3.0), "silent for 15 s, though"),
            (Observation(heard=94.9, watched=99.9, connected=False), "silent for 5 s"),
            (Observation(heard=80.0, watched=99.9, pause_until=100.5), ""),
            (Observation(heard=80.0, watched=99.9, pause_until=95.0), ""),
            (Observation(heard=80.0, watched=99.9, pause_until=89.9), "though its supervisor"),
            (Observation(heard=80.0, watched=80.0, pause_until=200.0), "it and its supervisor are silent"),
            (Observation(heard=100.0, watched=100.0, stopped=StoppedProcess(98.6, "worker 1")), ""),
            (
                Observation(heard=100.0, watched=100.0, stopped=StoppedProcess(98.5, "worker 1")),
                "its worker 1 is stopped",
            ),
            (
                Observation(heard=100.0, watched=100.0, stopped=StoppedProcess(98.5, "worker 0"), pause_until=200.0),
                "is stopped",
            ),
        ],
    )
    def test_at_second_100(self, observation: Observation, word: str) -> None:
        reason = judge(observation, L, 100.0)
        assert word in reason
        assert bool(reason) is bool(word)

    def test_silent_but_running_is_suspected(self) -> None:
        text = suspect(Observation(heard=94.0, watched=99.9), L, 100.0)
        assert "silent for 6.0 s, but its supervisor says that it runs" in text
        assert "lost after 10 s" in text
        # without a supervisor nobody says that it runs
        assert suspect(Observation(heard=85.0), SilenceLimits(alone=20.0), 100.0) == ""
        stopped = Observation(heard=100.0, stopped=StoppedProcess(90.0, ""))
        assert judge(stopped, L, 100.0).startswith("it is stopped (")

    @pytest.mark.parametrize(
        "observation",
        [
            Observation(heard=96.0, watched=99.9),
            Observation(heard=95.0, watched=99.9),
            Observation(heard=94.0),
            Observation(heard=80.0, watched=99.9),
            Observation(heard=94.0, watched=99.9, pause_until=101.0),
        ],
    )
    def test_nobody_else_is(self, observation: Observation) -> None:
        assert suspect(observation, L, 100.0) == ""


class TestSupervisors:
    def test_an_attempt_is_watched_by_its_groups_newest_supervisor(self) -> None:
        g = SupervisorLiveness()
        g.begin("0", 0, "t0")
        assert g.heard("t0") is None
        g.arrive(SupervisorHere("0", "host", 0, stream=1), 5.0)
        g.arrive(SupervisorHere("0", "host", 0, stream=2), 6.0)
        assert g.heard("t0") == 6.0
        g.receive(1, 7.0)
        assert g.heard("t0") == 7.0
        g.leave(SupervisorGone("0", stream=1), 8.0)
        assert g.heard("t0") == 6.0
        g.forgive(4.0, 9.0)  # a lighthouse that was starved takes the silence on itself
        assert g.heard("t0") == 9.0
        g.leave(SupervisorGone("0", stream=2), 9.0)
        assert g.heard("t0") is None

    def test_only_the_newest_attempt_of_a_group(self) -> None:
        """R21, seed 880000586: the first supervisor of a group that was moved twice reported its old attempt last,
        which was taken for the newest, so that nobody waited for the attempt that was finishing the job. The highest
        number is the newest."""
        g = SupervisorLiveness()
        g.arrive(SupervisorHere("0", "host", 0, stream=1), 5.0)
        g.begin("0", 0, "t0")
        g.begin("0", 1, "t1")
        assert g.heard("t0") is None
        assert g.heard("t1") == 5.0
        assert g.heard("") is None
        g.begin("0", 0, "t0")  # an older supervisor is here again: its group runs elsewhere by now
        assert g.heard("t0") is None
        assert g.heard("t1") == 5.0

    def test_an_older_attempt_is_known_by_the_older_supervisor_while_that_is_here(self) -> None:
        g = SupervisorLiveness()
        g.arrive(SupervisorHere("0", "old host", 0, stream=1), 5.0)
        g.begin("0", 0, "t0", 1)
        g.arrive(SupervisorHere("0", "new host", 0, stream=2), 6.0)
        g.begin("0", 1, "t1", 2)
        assert g.last_told("t0") == 5.0
        g.receive(2, 7.0)
        assert g.last_told("t0") == 5.0
        g.receive(1, 8.0)
        assert g.last_told("t0") == 8.0
        g.leave(SupervisorGone("0", stream=1), 9.0)
        assert g.last_told("t0") == 8.0
        g.arrive(SupervisorHere("0", "old host", 0, stream=3), 10.0)
        g.begin("0", 0, "t0", 3)  # it says so again on each stream
        assert g.last_told("t0") == 10.0
        g.end("t0")
        assert g.last_told("t0") is None
        assert (g._told_on, g._tells, g._silent) == ({"t1": 2}, {2: "t1"}, {})

    def test_the_group_server_lives_on_node_0(self) -> None:
        g = SupervisorLiveness()
        g.begin("0", 0, "t0")
        g.arrive(SupervisorHere("0", "host", 1, stream=1), 5.0)
        assert g.heard("t0") is None
        g.arrive(SupervisorHere("0", "host", 0, stream=2), 3.0)
        assert g.heard("t0") == 3.0

    def test_any_node_may_tell_of_a_stop_and_the_longest_counts(self) -> None:
        g = SupervisorLiveness()
        g.set_stopped(1, "t0", StoppedProcess(3.0, "worker 2"))  # on a stream that nobody has
        g.receive(1, 3.0)
        g.leave(SupervisorGone("0", stream=1), 8.0)
        assert g.stopped_of("t0", 0.0) is None
        g.arrive(SupervisorHere("0", "host", 0, stream=1), 5.0)
        g.arrive(SupervisorHere("0", "host", 1, stream=2), 6.0)
        g.set_stopped(2, "t0", StoppedProcess(3.0, "worker 2"))
        g.set_stopped(1, "t0", StoppedProcess(2.0, "worker 0"))
        assert g.stopped_of("t0", 5.0) == StoppedProcess(2.0, "worker 0")
        assert g.stopped_of("t0", 5.1) == StoppedProcess(3.0, "worker 2")  # the first is silent since
        assert g.stopped_of("t0", 6.1) is None
        g.set_stopped(1, "t0", None)
        assert g.stopped_of("t0", 0.0) == StoppedProcess(3.0, "worker 2")
        g.leave(SupervisorGone("0", 1, stream=2), 8.0)
        assert g.stopped_of("t0", 0.0) is None
        assert g.stopped == set()

    def test_a_group_is_named_while_its_supervisor_is_here(self) -> None:
        g = SupervisorLiveness()
        g.begin("0", 0, "t")
        assert g.group_of("t") == ""
        g.arrive(SupervisorHere("0", "host", stream=1), 3.0)
        assert g.group_of("t") == "0"
        assert list(g.groups) == ["0"]
        g.begin("0", 1, "")
        assert g.group_of("") == ""
        g.leave(SupervisorGone("0", stream=1), 4.0)
        assert list(g.groups) == []

    def test_the_status_has_each_supervisor_with_a_stream_and_when_it_was_heard(self) -> None:
        g = SupervisorLiveness()
        g.arrive(SupervisorHere("0", "n1", stream=1), 10.0)
        g.arrive(SupervisorHere("1", "n2", node=0, nodes=2, stream=2), 10.0)
        g.arrive(SupervisorHere("1", "n3", node=1, nodes=2, stream=3), 11.0)
        g.receive(1, 12.0)
        assert g.status(12.5) == [
            {"group": "0", "node": 0, "host": "n1", "heard": 0.5},
            {"group": "1", "node": 0, "host": "n2", "heard": 2.5},
            {"group": "1", "node": 1, "host": "n3", "heard": 1.5},
        ]
        g.leave(SupervisorGone("1", 0, 2), 13.0)
        assert [s["node"] for s in g.status(13.0) if s["group"] == "1"] == [1]


class Watched(Scene):
    """Members 0:a and 1:a with supervisors 100 and 101, in a quorum at step 4. Everybody is heard at second 0."""

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        for i in range(2):
            self.feed(SupervisorHere(str(i), "host", stream=100 + i))
            self.feed(AttemptStarted(str(i), 0, f"t{i}"))
            self.hello(f"{i}:a", attempt_id=AttemptId(0, 1.0, f"t{i}"))
        for i in range(2):
            self.join(f"{i}:a", State(4, 9))
        assert set(self.quorums) == {"0:a", "1:a"}

    def pass_time(self, seconds: float, *heard: str, watched: tuple[int, ...] = ()) -> list[LighthouseEffect]:
        """In ticks; who is `heard`, and whose supervisor is, speaks all the time."""
        effects: list[LighthouseEffect] = []
        for _ in range(round(seconds / self.tick)):
            self.now += self.tick
            for replica_id in heard:
                effects += self.heard(replica_id)
            for i in watched:
                effects += self.feed(SupervisorHeard(100 + i))
            effects += self.feed(Tick())
        return effects

    def lost(self, effects: list[LighthouseEffect]) -> list[str]:
        return [note.text for note in of(Note, effects) if note.event == "member_lost"]


class TestLighthouse:
    def test_silent_but_running(self) -> None:
        s = Watched()
        effects = s.pass_time(10.0, "0:a", watched=(0, 1))
        assert not s.lost(effects)
        suspects = [note.text for note in of(Note, effects) if note.event == "suspect"]
        assert len(suspects) == 1
        assert "1:a has been silent for 5.1 s, but its supervisor says that it runs" in suspects[0]
        assert s.lost(s.pass_time(0.2, "0:a", watched=(0, 1)))
        s = Watched()
        assert not s.lost(s.pass_time(1.4, "0:a", watched=(0,)))
        effects = s.pass_time(0.3, "0:a", watched=(0,))
        assert s.lost(effects) == ["1:a is lost: it and its supervisor are silent for 1.5 s."]
        assert of(RevokeQuorum, effects)[0].lost == ("1:a",)

    def test_a_member_with_long_steps_is_given_longer(self) -> None:
        s = Watched()
        s.pass_time(3.0, "0:a", "1:a", watched=(0, 1))
        for i in range(2):
            s.join(f"{i}:a", State(5, s.quorums["0:a"].id))
        assert s.quorums["1:a"].number == 2
        assert not s.lost(s.pass_time(14.9, "0:a", watched=(0, 1)))
        assert s.lost(s.pass_time(0.4, "0:a", watched=(0, 1)))

    def test_waiting_for_others_is_no_long_step(self) -> None:
        s = Watched()
        s.join("1:a", State(5, s.quorums["1:a"].id))
        s.pass_time(30.0, "0:a", "1:a", watched=(0, 1))
        s.join("0:a", State(5, s.quorums["0:a"].id))
        assert s.quorums["1:a"].number == 2
        assert s.lost(s.pass_time(10.2, "0:a", watched=(0, 1)))

    def test_a_stopped_process(self) -> None:
        s = Watched()
        effects = s.feed(AttemptHalted(101, "t1", "worker 0", 1.1))
        effects += s.pass_time(0.3, "0:a", "1:a", watched=(0, 1))
        assert not s.lost(effects)
        effects = s.pass_time(0.2, "0:a", "1:a", watched=(0, 1))
        assert s.lost(effects) == [
            "1:a is lost: its worker 0 is stopped (SIGSTOP or a debugger), for 1.5 s, says its supervisor."
        ]

    def test_a_stopped_rank_of_a_group_that_waits_is_not_waited_for(self) -> None:
        """Its rank 0 speaks on, but while a rank is stopped the group can't take part."""
        s = Watched()
        q = s.quorums["1:a"].id
        s.join("1:a", State(5, q))
        s.feed(AttemptHalted(101, "t1", "worker 1", 1.1))
        assert s.lost(s.pass_time(1.0, "0:a", "1:a", watched=(0, 1)))
        s.pass_time(1.0, "0:a", "1:a", watched=(0, 1))
        s.join("0:a", State(5, q))
        assert [m.replica_id for m in s.quorums["0:a"].members] == ["0:a"]
        s.feed(AttemptHalted(101, "t1", ""))  # its join still stands
        s.join("0:a", State(6, s.quorums["0:a"].id))
        assert [m.replica_id for m in s.quorums["0:a"].members] == ["0:a", "1:a"]

    def test_a_supervisor_that_is_cut_off_can_not_say_that_it_goes_on(self) -> None:
        """L2: a supervisor reports that a process is stopped, and is then cut off. The process goes on, speaks and
        waits; it was passed over for as long as the supervisor's stream looked open. A stop counts only while that
        supervisor is heard."""
        s = Watched()
        q = s.quorums["1:a"].id
        s.join("1:a", State(5, q))
        s.feed(AttemptHalted(101, "t1", "worker 0", 1.1))
        assert s.lost(s.pass_time(1.0, "0:a", watched=(0, 1)))
        s.join("0:a", State(5, q))
        s.pass_time(1.6, "0:a", "1:a", watched=(0,))
        s.join("0:a", State(6, s.quorums["0:a"].id))
        assert [m.replica_id for m in s.quorums["0:a"].members] == ["0:a", "1:a"]


class TestPauses:
    def pause(self, s: Watched, seconds: float) -> list[LighthouseEffect]:
        return s.feed(Paused(s.sessions["1:a"], seconds, "evaluation"))

    def test_while_it_lasts_silence_does_not_count(self) -> None:
        s = Watched()
        self.pause(s, 60.0)
        effects = s.pass_time(69.9, "0:a", watched=(0, 1))
        assert not s.lost(effects)
        assert s.lost(s.pass_time(0.3, "0:a", watched=(0, 1)))
        s = Watched()
        self.pause(s, 1e12)
        assert s.record("1:a").pause_until - s.now == 86400.0  # nobody is waited for longer than a day


class TestSuspicion:
    def test_a_suspect_is_probed_once_however_many_ask_after_it(self) -> None:
        s = Watched()

        def probed(session: int, *suspects: str) -> list[str]:
            return [p.replica_id for p in of(Probe, s.feed(Suspected(session, suspects)))]

        first = s.sessions["0:a"]
        assert probed(first, "1:a", "0:a", "9:x") == ["1:a", "0:a"]
        assert probed(first, "1:a") == []
        s.now = 0.05  # the answer to that is due
        assert probed(first, "1:a") == ["1:a"]
        s.hello("2:a", attempt_id=AttemptId(0, 1.0, "t2"))
        s.now = 0.2
        assert probed(first, "2:a") == []  # an outsider
        s.hello("0:a", attempt_id=AttemptId(0, 1.0, "t0"))
        assert probed(first, "1:a") == []  # the word of a replaced session counts for nothing
        s.record("1:a").lost = "silent"
        assert probed(s.sessions["0:a"], "1:a") == []

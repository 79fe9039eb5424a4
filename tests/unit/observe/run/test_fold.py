"""observe/run: a run put together from its event logs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.observe.written import BOOT, Job, Log, killed
from torchft_x.observe.drawing.figures import summary
from torchft_x.observe.drawing.page import page
from torchft_x.observe.run import read_run
from torchft_x.observe.run.values import Loss, Run, Samples, Slow


def the(run_dir: Path) -> Run:
    run = read_run(run_dir)
    assert run is not None
    return run


def only(run: Run) -> Loss:
    (loss,) = run.losses
    return loss


def test_a_kill_is_taken_apart(tmp_path: Path) -> None:
    killed(tmp_path)
    loss = only(the(tmp_path))
    assert (loss.group, loss.kind, loss.reason) == ("1", "died", "worker 0 killed by SIGKILL")
    assert loss.t == pytest.approx(BOOT + 10.001)
    survivors = {"fault": 0.0, "detected": 0.019, "released": 0.040, "regrouped": 0.059, "committed": 0.099}
    victim = {"restarted": 1.499, "healed": 2.049, "back": 2.099, "whole": 2.099}
    assert dict(loss.phases) == pytest.approx(survivors | victim, abs=1e-4)
    assert (loss.dropped, loss.redone, loss.without, loss.thrown) == (0, 1, 20, 0)
    assert loss.stood == pytest.approx(0.1, abs=1e-4)  # 9.9 to 10.1, less a usual step


def test_steps_that_no_log_has_are_counted(tmp_path: Path) -> None:
    """The logs of the trainers were cut short, and there was not even room for the marker beside them."""
    job = Job(tmp_path)
    job.begin()
    job.steps(0, 78, 2.1, 100, job.names)
    job.lighthouse.tell(20.0, "exit", code=0, reason="All groups finished.", step=500)
    run = the(tmp_path)
    assert (run.steps, run.unlogged, run.incomplete) == (500, 421, ())


def test_the_run_as_a_whole(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.a_kill()
    job.trainers["0"].tell(12.2, "metrics", step=100, loss=2.5)
    job.trainers["0"].tell(12.3, "checkpoint", step=100, duration=0.5, bytes=1000)
    job.end()
    run = the(tmp_path)
    assert (run.code, run.steps, run.unlogged, run.redone, run.dropped, run.unreadable) == (0, 121, 0, 1, 0, 0)
    assert [(g.name, len(g.attempts), g.commits) for g in run.groups] == [("0", 1, 121), ("1", 2, 101), ("2", 1, 121)]
    assert [(q.number, q.contributors) for q in run.quorums] == [(1, 3), (2, 2), (3, 2)]
    assert run.goodput.batches == 3 * 101 + 2 * 20
    assert run.goodput.missing == 20
    assert run.goodput.usual == pytest.approx(0.1)
    assert run.goodput.could == pytest.approx((14.2 - 2.1 + 0.1) / 0.1 * 3)
    assert sum(run.step_times.bars) == 121 + 121 + 101
    assert [(p.step, p.loss) for p in run.curve] == [(100, 2.5)]
    assert run.stood == pytest.approx(0.1, abs=1e-4)
    assert (run.checkpoints.number, run.checkpoints.step) == (1, 100)
    assert run.bytes == 343_000
    spans = [(s.what, round(s.begin - BOOT, 1), round(s.end - BOOT, 1)) for s in run.groups[1].spans]
    assert spans == [
        ("starting", 0.5, 1.5),
        ("joining", 1.5, 2.1),
        ("training", 2.1, 9.9),
        ("starting", 10.0, 11.5),
        ("joining", 11.5, 12.1),
        ("training", 12.1, 14.2),
    ]


@pytest.mark.parametrize("ahead", [-10.0, 10.0])
def test_a_report_of_hosts_whose_clocks_differ_is_readable(tmp_path: Path, ahead: float) -> None:
    """The lighthouse is on a second host, the last group on a third one."""
    job = Job(tmp_path, ahead=-ahead)
    job.lighthouse = Log(tmp_path, "lighthouse", 1, uptime=9000.0, ahead=ahead)
    job.a_kill()
    job.end()
    run = the(tmp_path)
    (loss,) = (loss for loss in run.losses if loss.kind == "died")
    assert (loss.group, loss.restarted) == ("1", pytest.approx(BOOT + 11.5))
    assert all(seconds >= 0 for x in run.losses for seconds in (x.stood, *dict(x.phases).values()))
    assert all(s.end > s.begin for group in run.groups for s in group.spans)
    assert all(q.until is None or q.until >= q.t for q in run.quorums)
    for shown in (summary(run, 0.0), page(run, 0.0)):
        assert "died (worker 0 killed by SIGKILL)" in shown


def test_who_is_left_out_and_comes_back_is_the_same_attempt(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.steps(0, 50, 2.1, 100, ("0", "1", "2"))
    for log in (job.trainers["0"], job.trainers["1"]):
        log.tell(8.7, "quorum", quorum=101, number=2, step=51, members=["0:a", "1:a"], healing=[])
    job.steps(51, 70, 8.8, 101, ("0", "1"))
    everybody = ["0:a", "1:a", "2:a"]
    for log in job.trainers.values():
        log.tell(10.8, "quorum", quorum=102, number=3, step=71, members=everybody, healing=["2:a"])
    job.steps(71, 90, 10.9, 102, ("0", "1", "2"))
    run = the(tmp_path)
    loss = only(run)
    assert (loss.group, loss.kind, loss.restarted, loss.without) == ("2", "left out", None, 20)
    assert dict(loss.phases)["back"] == pytest.approx(2.2)
    assert [s.what for s in run.groups[2].spans][-3:] == ["training", "out", "training"]
    assert run.code is None


def test_a_supervisor_that_was_killed_says_nothing(tmp_path: Path) -> None:
    killed(tmp_path)
    for path in (tmp_path / "events").glob("supervisor-1-*"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    Log(tmp_path, "supervisor", 50, group="1").tell(11.0, "start", attempt=1, attempt_token="y")
    loss = only(the(tmp_path))
    assert (loss.kind, loss.reason) == ("lost", "refused")
    assert loss.t == pytest.approx(BOOT + 10.02)  # the first who knew
    assert dict(loss.phases)["back"] == pytest.approx(2.08)
    Log(tmp_path, "keeper", 60).tell(10.025, "restart", group="1", reason="its supervisor was killed by SIGKILL")
    assert only(the(tmp_path)).reason == "its supervisor was killed by SIGKILL"


def test_who_is_ended_long_after_it_was_left_out_has_hung(tmp_path: Path) -> None:
    job = killed(tmp_path)
    path = job.supervisors["1"].path
    path.write_text(path.read_text().replace("worker 0 killed by SIGKILL", "hung: rank 0 stands still in nap"))
    loss = only(the(tmp_path))
    assert (loss.kind, loss.fault, loss.reason) == ("hung", None, "hung: rank 0 stands still in nap")


def test_an_attempt_that_ends_before_it_is_in_a_quorum_costs_nobody_anything(tmp_path: Path) -> None:
    job = killed(tmp_path)
    job.supervisors["1"].tell(11.0, "exit", attempt=1, code=1, reason="worker 0 exited with code 1")
    job.supervisors["1"].tell(11.0, "restart", attempt=2, delay=0.0, reason="worker 0 exited with code 1")
    for path in (tmp_path / "events").glob("trainer-1-0-30*"):
        path.write_text(path.read_text().replace('"attempt": 1', '"attempt": 2'))
    first, second = the(tmp_path).losses
    assert (first.without, first.back, second.back) == (20, second.back, pytest.approx(BOOT + 12.1))
    assert (second.reason, second.committed, second.stood) == ("worker 0 exited with code 1", None, 0.0)


def test_all_gone_at_once_and_a_new_lineage(tmp_path: Path) -> None:
    job = Job(tmp_path, ("0", "1"))
    job.begin()
    job.steps(0, 50, 2.1, 100, ("0", "1"))
    for k, g in enumerate("01"):
        job.supervisors[g].tell(7.2 + 0.01 * k, "exit", attempt=0, code=-9, reason="worker 0 killed by SIGKILL")
        job.supervisors[g].tell(7.25, "restart", attempt=1, delay=0.0, reason="worker 0 killed by SIGKILL")
        job.trainers[g] = Log(tmp_path, "trainer", 40 + k, group=g, rank=0, attempt=1, replica_id=f"{g}:b")
        job.trainers[g].tell(8.0, "joined", step=0)
        job.trainers[g].tell(8.1, "restored", step=48, quorum=100, duration=0.1)
    job.lighthouse.tell(8.2, "new_lineage", quorum=101, steps=3, reason="nobody holds steps 48 to 50")
    for g in "01":
        job.trainers[g].tell(8.3, "quorum", quorum=101, number=2, step=48, members=["0:b", "1:b"], healing=[])
    job.steps(48, 60, 8.4, 101, ("0", "1"))
    run = the(tmp_path)
    assert run.steps == 61
    assert [x.steps for x in run.lineages] == [3]
    assert [(x.group, x.kind, x.thrown) for x in run.losses] == [("0", "died", 3), ("1", "died", 3)]
    assert run.losses[0].back == pytest.approx(BOOT + 8.4)
    assert [x.stood for x in run.losses] == pytest.approx([1.5] * 2)  # 6.8 (of steps 47) to 8.4, less a step
    assert run.stood == pytest.approx(run.losses[0].stood)  # and not the sum: they stood together
    assert run.goodput.batches == 2 * 61  # what was undone counts once


def test_cause_stands_beside_effect(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.a_kill()
    job.lighthouse.tell(13.0, "restart", attempt=1, delay=0.0, reason="the lighthouse was killed by SIGKILL")
    job.lighthouse.tell(13.5, "start", address="http://here:1")
    chaos = Log(tmp_path, "chaos", 99)
    chaos.tell(9.98, "fault", kind="kill", group="1", rank=0, victim=21, number=1)
    chaos.tell(12.5, "fault", kind="stop", group="2", rank=0, victim=22, number=2, duration=0.5)
    chaos.tell(12.99, "fault", kind="lighthouse", victim="a-lighthouse-0-x", number=3)  # a pod's
    run = the(tmp_path)
    assert [(x.kind, x.by and x.by.number) for x in run.losses] == [("died", 1), ("nothing", 2), ("lighthouse", 3)]
    assert dict(run.losses[0].phases)["detected"] == pytest.approx(0.04)  # from what chaos knows
    assert dict(run.losses[2].phases)["back"] == pytest.approx(0.51)


def test_the_samples_of_the_newest_commit_and_how_far_the_position_went_back(tmp_path: Path) -> None:
    """Step 5 is undone by a new lineage: what it had trained is trained again, in other weights, and counts once."""
    job = Job(tmp_path)
    job.begin()
    log = job.trainers["0"]

    def commit(at: float, step: int, quorum: int, samples: int, debt: int = 0) -> None:
        log.tell(at, "commit", step=step, quorum=quorum, participants=3, duration=0.1, samples=samples, debt=debt)

    for step in range(6):
        commit(3.0 + step, step, 100, 8 * (step + 1))
    job.lighthouse.tell(9.5, "new_lineage", quorum=101, steps=1, reason="lost")
    commit(10.0, 5, 101, 46, 2)
    assert the(tmp_path).samples == Samples(committed=46, repeated=0, debt=2)
    commit(11.0, 6, 101, 36)
    assert the(tmp_path).samples == Samples(committed=36, repeated=10, debt=0)


def test_a_job_whose_script_chooses_its_data_has_no_samples(tmp_path: Path) -> None:
    killed(tmp_path)
    assert the(tmp_path).samples is None


def test_a_job_that_is_stopped_has_lost_nobody(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.steps(0, 50, 2.1, 100, job.names)
    for g in job.names:
        job.supervisors[g].tell(7.5, "exit", attempt=0, code=143, reason="worker 0 ended with 143")
    assert the(tmp_path).losses == ()


def test_torn_odd_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    job = killed(tmp_path)
    odd = [
        "[]", "null", "17", '"commit"', "{", '{"event": "commit"}', '{"event": ["commit"]}', "[" * 3000,
        '{"t": NaN, "mono": NaN, "event": "commit", "step": 1}',
        '{"t": 1.0, "mono": 1.0, "event": "commit", "step": 1e400}',
        '{"t": 1.0, "mono": 1.0, "event": "commit", "step": ' + "9" * 40 + "}",
        '{"t": 1.0, "mono": 1.0, "event": "commit", "step": -1}',
        '{"t": 1.0, "mono": 1.0, "event": "commit", "step": true}',
        '{"t": 1.0, "mono": 1.0, "event": "quorum", "members": 7}',
        '{"t": 1.0, "event": "quorum"}',
    ]  # fmt: skip
    path = job.trainers["0"].path
    path.write_bytes(path.read_bytes() + "\n".join(odd).encode() + b"\n\xff\xfe\n" + b'{"t": 1.0, "mono"')
    run = the(tmp_path)
    assert run.unreadable == len(odd) + 1  # what is torn is no line
    assert only(run).kind == "died"


def test_a_process_id_that_comes_again_is_another_attempt(tmp_path: Path) -> None:
    """In containers they begin anew: both attempts of a group write to one file."""
    killed(tmp_path)
    first, second = (next((tmp_path / "events").glob(f"trainer-1-0-{pid}.jsonl")) for pid in (21, 30))
    first.write_text(first.read_text() + second.read_text())
    second.unlink()
    assert [attempt.number for attempt in the(tmp_path).groups[1].attempts] == [0, 1]


def test_nothing_is_no_run(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "trainer-0.jsonl").write_text("\n")
    assert read_run(tmp_path) is None


def written(tmp_path: Path, *own: dict[str, float], steps: int = 50) -> Run:
    """Return a run of so many steps for each of `own`, the seconds of the groups' own parts of a step."""
    job = Job(tmp_path, tuple(own[0]))
    job.begin()
    step = 0
    for seconds in own:
        for _ in range(steps):
            for name, part in seconds.items():
                at = 3.0 + step + 0.1 * int(name)
                job.trainers[name].tell(
                    at, "commit", step=step, quorum=100, participants=2, duration=0.9, own_part=part
                )
            step += 1
    return the(tmp_path)


def test_a_slow_span_is_named_once(tmp_path: Path) -> None:
    alike, slow, nearly = {"0": 0.1, "1": 0.1}, {"0": 0.1, "1": 0.15}, {"0": 0.1, "1": 0.12}
    run = written(tmp_path, alike, nearly, slow, nearly, slow, alike, nearly)
    assert run.slow == (Slow(group="1", begin=100, end=249, slower=0.15 / 0.1 - 1),)
    said = "Group 1 in steps 100 to 249: its own part of a step takes 50 % longer than that of the others."
    assert said in summary(run, 0.0)


def test_the_rest_of_many_slow_spans_is_counted(tmp_path: Path) -> None:
    run = dataclasses.replace(written(tmp_path, {"0": 0.1}), slow=(Slow(group="1", begin=0, end=99, slower=0.5),) * 23)
    for shown in (summary(run, 0.0), page(run, 0.0)):
        assert shown.count("takes 50 % longer") == 20
        assert "And 3 more times that a group was slower (--json has all)." in shown


def test_a_few_long_steps_make_no_group_slow(tmp_path: Path) -> None:
    """A compile, a checkpoint."""
    assert written(tmp_path, {"0": 0.1, "1": 9.0}, {"0": 0.1, "1": 0.1}, {"0": 0.1, "1": 0.1}, steps=24).slow == ()


def test_logs_without_own_parts_name_nobody(tmp_path: Path) -> None:
    assert written(tmp_path, {"0": 0.0, "1": 0.0}, {"0": 0.0, "1": 0.1}).slow == ()


def test_groups_are_judged_together(tmp_path: Path) -> None:
    """Beside group 1 alone, which reports before group 2, group 0 would be slow."""
    assert written(tmp_path, {"0": 0.14, "1": 0.1, "2": 0.13}).slow == ()

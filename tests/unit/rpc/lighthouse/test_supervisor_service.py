"""The roster of a lighthouse that is started again knows the groups that had finished."""

from __future__ import annotations

from torchft_x.core.job.outcome import JobConfig, JobOutcome
from torchft_x.core.messages.job import (
    AttemptStarted,
    QuorumIssued,
    SupervisorFinished,
    SupervisorHere,
    TellStop,
)
from torchft_x.rpc.lighthouse.failover.journal import JournalContents
from torchft_x.rpc.lighthouse.supervisor_service import done_entry, restored


def test_a_group_that_has_finished_is_not_awaited_and_a_late_one_is_stopped() -> None:
    before = JobOutcome(JobConfig(groups=("0", "1")))
    for event in (
        SupervisorHere("0", "n1", stream=1),
        AttemptStarted("0", 3, "t0"),
        QuorumIssued(frozenset({"t0", "t1"})),
        QuorumIssued(frozenset({"t2"})),  # of others, while it ends
    ):
        before.handle(event, 0.0)
    end = SupervisorFinished("0", 0, "done")
    known = before.known("0", 0)
    assert known is not None
    assert before.known("2", 0) is None
    done = done_entry(end, *known)
    assert (done.host, done.attempt, done.attempt_token, list(done.together)) == ("n1", 3, "t0", ["t0", "t1"])

    after = JobOutcome(JobConfig(groups=("0", "1")))
    for event in restored(JournalContents(None, (done,))):
        assert after.handle(event, 0.0) == []
    assert after.status()["0"] == {"state": "finished", "host": "n1", "attempt": 3, "trouble": ""}
    effects = after.handle(SupervisorHere("1", "n2", stream=2), 1.0)
    assert [type(e) for e in effects] == [TellStop]

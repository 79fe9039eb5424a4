"""Lost nodes of a real Slurm with its own times, whose nodes are hosts: the others train on, and the group comes back by itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.events import commits
from tests.extended.slurm.hosts import SlurmHosts, missing, slurm_hosts
from tests.extended.slurm.job import SlurmFtJob
from tests.journeys.jobs import SMALL
from tests.journeys.test_kills import script
from torchft_x import env
from torchft_x.errors import TorchftXError
from torchft_x.launch.slurm import store
from torchft_x.net import parse_address
from torchft_x.rpc.status_query import lighthouse_status

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmHosts]:
    if sentence := missing():
        pytest.skip(sentence)
    # pytest's own path is too long for a socket
    temporary = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
    with temporary as folder, slurm_hosts(Path(folder, "c"), 4, stock=True) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster


def commits_of(job: SlurmFtJob, group: str, after: float = 0.0) -> list[float]:
    return [float(e["t"]) for e in commits(job.events(), group=group) if float(e["t"]) > after]


def test_groups_whose_nodes_are_lost_come_back_elsewhere(hosts: SlurmHosts) -> None:
    """First without a word (Slurm would notice after minutes), then by an administrator (Slurm would let it wait for 121 s); and
    then the node with the lighthouse that serves, while no other node is free."""
    job = SlurmFtJob(hosts, hosts.folder.parent, groups=2)
    dumps = job.run_dir.parent / "dumps"
    job.submit(["--steps", "100000", "--pace", "0.1", "--dump-params", str(dumps), *SMALL])
    job.wait_until_training(2)
    nodes = {name: row.nodes[0] for name, row in job.rows().items()}
    spare, last = sorted(set(hosts.nodes) - set(nodes.values()))
    hosts.set_down(last)
    first = store.read(job.run_dir).group("1")
    assert first is not None

    hosts.lose_power(nodes["trainer/1"])
    lost = time.time()  # not before: it may commit until then
    job.wait_for(lambda: len(commits_of(job, "1", lost)) > 10, 100, "group 1 after its node has lost its power")
    back = commits_of(job, "1", lost)[0]
    assert job.node("trainer/1") == spare
    assert len([t for t in commits_of(job, "0", lost) if t < back]) > 10  # it went on meanwhile
    again = store.read(job.run_dir).group("1")
    assert again is not None
    assert again.earlier == (first.job,)

    hosts.power_on(nodes["trainer/1"])
    hosts.wait_until_up(nodes["trainer/1"])
    down = time.time()
    hosts.set_down(nodes["trainer/0"])
    job.wait_for(lambda: len(commits_of(job, "0", down)) > 10, 100, "group 0 after its node was set down")
    row = job.rows()["trainer/0"]
    assert (row.job, row.restarts, row.nodes) == (f"{first.job.partition('_')[0]}_0", 1, (nodes["trainer/1"],))
    assert job.rows()["trainer/1"].restarts == 0

    address = (job.run_dir / "lighthouse").read_text()
    (lost_group,) = (g for g in "01" if f"//{hosts.address(job.node(f'trainer/{g}'))}:" in address)
    stays = "1" if lost_group == "0" else "0"
    dark = time.time()
    hosts.lose_power(job.node(f"trainer/{lost_group}"))
    job.wait_for(lambda: supervisors_at_the_lighthouse(job) == {stays}, 100, "the other group at another lighthouse")
    assert (job.run_dir / "lighthouse").read_text() != address
    lease = dark + 130.0
    job.wait_for(lambda: commits_of(job, stays, dark)[-1:] > [lease], 200, "it to train on for longer than a lease")
    print("longest pause", max(b - a for a, b in pairwise(commits_of(job, stays, dark - 1.0))))

    hosts.resume(nodes["trainer/0"])
    back = time.time()
    job.wait_for(lambda: commits_of(job, lost_group, back), 100, "the lost group on the node that is free again")

    hosts.run("scancel", *store.read(job.run_dir).jobs)
    job.wait_for(job.over, 60, "the end of the job")
    said = script("check_params", dumps)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_job_goes_through_its_time_limit_and_ends_by_itself(hosts: SlurmHosts) -> None:
    """All groups are queued again ahead of it, so what they go on from is their last step, saved; and nobody waits for a
    BeginTime (121 s). Slurm looks at times each half minute."""
    steps = 1500  # more than fit into the limit
    job = SlurmFtJob(hosts, hosts.folder.parent, groups=2)
    folder = job.run_dir.parent
    args = ["--steps", str(steps), "--pace", "0.15", "--checkpoint", str(folder / "saved"), *SMALL]
    job.submit([*args, "--dump-params", str(folder / "dumps")], cfg={"time": "4", "signal": "B:USR1@30"})
    job.wait_until_training(2)
    groups = store.read(job.run_dir).groups
    job.wait_for(lambda: all(p.earlier for p in store.read(job.run_dir).groups), 260, "the time limit of the groups")
    job.wait_for(lambda: store.read(job.run_dir).outcome is not None, 300, "the end of the job")
    assert store.read(job.run_dir).outcome == 0, job.output()
    events = commits(job.events())
    for group in groups:  # who leaves first misses the last step that the others save
        mine = [int(e["step"]) for e in events if str(e.get("group")) == str(group.number)]
        assert mine == sorted(set(mine)), f"{group.name} has repeated a step"
    assert {int(e["step"]) for e in events} == set(range(steps))
    times = sorted(float(e["t"]) for e in events)
    assert max(b - a for a, b in pairwise(times)) < 110
    said = script("check_params", folder / "dumps")
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_group_leaves_a_node_on_which_the_health_command_fails(hosts: SlurmHosts) -> None:
    """The job excludes the node, and the other groups train on. When it fails on all nodes, the job has failed."""
    job = SlurmFtJob(hosts, hosts.folder.parent / "one", groups=3)
    endless = ["--steps", "100000", "--pace", "0.1", *SMALL]
    job.submit(endless, health='test "$SLURMD_NODENAME" != n2 || { echo no GPU 3; exit 3; }')
    job.wait_until_training(3, 150)
    said = "the health command failed (exit code 3) on n2: no GPU 3"
    assert {row.nodes[0] for row in job.rows().values()} == {"n1", "n3", "n4"}
    assert store.unhealthy(job.run_dir) == {"n2": said}
    (moved,) = (part for part in store.read(job.run_dir).groups if part.earlier)
    assert "ExcNodeList=n2" in hosts.run("scontrol", "show", "job", "-o", moved.job)
    assert said in job.output("trainer-*")
    hosts.run("scancel", *store.read(job.run_dir).jobs)
    job.wait_for(job.over, 60, "the end of the job")

    job = SlurmFtJob(hosts, hosts.folder.parent / "two", groups=2)
    job.submit(endless, health="echo no GPU 3; exit 3")
    job.wait_for(lambda: store.read(job.run_dir).outcome is not None, 200, "the end of the job")
    made = store.read(job.run_dir)
    assert made.outcome == 1
    assert "no host is left for it" in made.why
    assert "the health command failed (exit code 3) on n1: no GPU 3" in made.why
    assert set(store.unhealthy(job.run_dir)) == set(hosts.nodes)


def supervisors_at_the_lighthouse(job: SlurmFtJob) -> set[str]:
    """Groups; none while it does not answer."""
    try:
        address = parse_address((job.run_dir / "lighthouse").read_text().strip())
        status = lighthouse_status(address, env.read_token_file(str(job.run_dir / "token"), "token"), 1.0)
        return {one["group"] for one in status["supervisors"]}
    except (TorchftXError, KeyError):
        return set()

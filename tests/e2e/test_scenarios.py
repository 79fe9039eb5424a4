"""Scenario files with real processes. What the files say: docs/scenarios.md."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.scenario import networks
from tests.scenario.language import read
from tests.scenario.play import judge, longest_stall, play
from tests.scenario.real import ROOT, cluster
from tests.util import scaled

sys.path.insert(0, str(ROOT / "scripts"))

import check_params  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FILES = ROOT / "tests" / "scenario" / "files"
REAL = tuple(p.stem for p in sorted(FILES.glob("*.txt")) if not read(p).only_simulated)
"""All files run in the simulator; these also here, where a minute is a minute."""


@pytest.mark.parametrize("name", REAL)
def test_with_real_processes(name: str, tmp_path: Path) -> None:
    scenario = read(FILES / f"{name}.txt")
    missing = networks.missing()
    if scenario.cuts and missing:
        pytest.skip(missing)
    with cluster(scenario, tmp_path, networks=not missing) as stage:
        play(scenario, stage)
    stall, step = longest_stall(stage.record)
    print(
        f"{name}: step {stage.record.step}, {len(stage.record.dropped)} dropped, longest stall {stall:.2f} s at {step}"
    )
    findings = [*judge(scenario, stage.record, factor=scaled(1.0)), *check(stage.dumps)]
    assert not findings, "\n".join([*findings, f"everything is in {tmp_path}"])


def check(dumps: Path) -> list[str]:
    """What the outside checker finds.

    Until the groups vote across (part 4 of the protocol) a step that a lost group has committed alone may be done again
    with other bits, in another quorum: that is reported, but no fault. In one quorum the bits must be equal.
    """
    read = check_params.read_dumps(dumps)
    findings = [f for f in check_params.check(read) if "the parameters differ" not in f]
    at = defaultdict(set)
    again = defaultdict(set)
    for d in read:
        at[d.step, d.rank, d.committed_in].add(d.digest)
        again[d.step].add(d.committed_in)
    findings += [f"step {s}, rank {r}, quorum {q}: the parameters differ" for (s, r, q), x in at.items() if len(x) > 1]
    twice = [step for step, quorums in sorted(again.items()) if len(quorums) > 1]
    print(f"{len(read)} dumps, {check_params.shared_steps(read)} shared steps; committed in two quorums: {twice}")
    return findings if read else ["no dumps were written"]

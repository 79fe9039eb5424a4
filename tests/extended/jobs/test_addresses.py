"""Two machines with a cable between them and names that lead nowhere: they train together, one is killed, and heals.

The lighthouse and group g0 are on the left machine, g1 on the right. Nothing tells them by which address others reach them,
but where the test says so: they find it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.evidence import check_params
from tests.scenario import networks
from tests.scenario.cable import Pair
from tests.scenario.check import unequal
from tests.scenario.play import judge, play
from tests.scenario.real import Cluster
from tests.scenario.stories import at, scenario
from tests.scenario.values import AtStep, Kill, trainer
from torchft_x import env

pytestmark = [pytest.mark.timeout(150)]
STORY = scenario("addresses", at(AtStep(12), Kill(trainer("g1"))), expect=[], groups=2, timeout=20)


@dataclass(frozen=True)
class Case:
    families: str  # that the machines have
    lighthouse: str  # family of its address
    own_name: str | None  # what the machines' own name leads to; None: nowhere
    interface: str = ""  # that is named in a variable


CASES = {
    "IPv4 only, own name is the loopback": Case("4", "4", "127.0.1.1"),
    "IPv6 only, no names": Case("6", "6", None),
    "dual, by interface": Case("46", "6", "127.0.1.1", "eth0"),
}


class Cabled(Cluster):
    """A cluster on the two machines."""

    def __init__(self, pair: Pair, case: Case, folder: Path) -> None:
        self._pair, self._case = pair, case
        super().__init__(STORY, folder, None)

    def _command(self, host: str) -> list[str]:
        return self._pair.command("right" if host == "g1" else "left")

    def _address(self, host: str) -> str:
        return self._pair.url_host("left", self._case.lighthouse)

    def _environ(self, host: str) -> dict[str, str]:
        found = super()._environ(host)
        del found[env.ADVERTISE_HOST]
        return found | ({env.ADVERTISE_INTERFACE: self._case.interface} if self._case.interface else {})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_they_train_together_and_a_killed_one_heals(case: Case, tmp_path: Path) -> None:
    if why := networks.missing():
        pytest.skip(why)
    with Pair(case.families) as pair:
        pair.own_name(case.own_name)
        job = Cabled(pair, case, tmp_path)
        try:
            job.start()
            play(STORY, job)
        finally:
            job.close()
    assert job.record.attempts["g1"] == 2
    assert [*judge(STORY, job.record), *unequal(job.dumps)] == []
    assert check_params.shared_steps(check_params.read_dumps(job.dumps)) > 10

"""One group that trains apart, as a process, for tests that kill it.

It writes a digest of the state common to all groups after each exchange. Its steps are exchanges.
"""

from __future__ import annotations

import json
import time

from tests.torch.train.apart import LocalTrainer
from tests.torch.train.jobs import Told, digest


def main(told: Told, algorithm: str, *settings: str) -> None:
    kwargs = {name: json.loads(value) for name, _, value in (s.partition("=") for s in settings)}
    apart = LocalTrainer(told.group, told.lighthouse, algorithm=algorithm, seed=told.group + int(time.time()), **kwargs)
    with apart.loop:
        seen = -1
        while True:
            if apart.loop.exchanges != seen:
                seen = apart.loop.exchanges
                told.say("commit", seen, digest(apart.common()))
                if not told.goes_on(seen):
                    break
            apart.step()
            time.sleep(0.003)  # lengthen steps, so that kills hit inner steps as well as exchanges
    apart.manager.shutdown()

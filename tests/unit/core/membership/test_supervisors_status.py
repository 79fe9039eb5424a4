from __future__ import annotations

from torchft_x.core.membership.supervisors import SupervisorLiveness
from torchft_x.core.messages.job import SupervisorGone, SupervisorHere


def test_each_supervisor_with_a_stream_and_when_it_was_heard() -> None:
    known = SupervisorLiveness()
    known.arrive(SupervisorHere("0", "n1", stream=1), 10.0)
    known.arrive(SupervisorHere("1", "n2", node=0, nodes=2, stream=2), 10.0)
    known.arrive(SupervisorHere("1", "n3", node=1, nodes=2, stream=3), 11.0)
    known.hear(1, 12.0)
    assert known.status(12.5) == [
        {"group": "0", "node": 0, "host": "n1", "heard": 0.5},
        {"group": "1", "node": 0, "host": "n2", "heard": 2.5},
        {"group": "1", "node": 1, "host": "n3", "heard": 1.5},
    ]
    known.leave(SupervisorGone("1", 0, 2), 13.0)
    assert [s["node"] for s in known.status(13.0) if s["group"] == "1"] == [1]

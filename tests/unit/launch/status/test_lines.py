"""The overview as text: what a person reads, and what a terminal must not be told."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from torchft_x.launch.status import lines
from torchft_x.launch.status.live import picture

GROUP = {"group": "1", "does": "heals", "more": "copies from group 0", "step": 1234, "restarts": 2, "host": "node-b"}
STATUS: dict[str, Any] = {
    "state": "training",
    "step": 1234,
    "step_rate": 0.25,
    "quorum": {"number": 7, "age": 200.0},
    "waiting": {"members": 1, "since": 3.5, "reason": "Waiting for group 2."},
    "groups": [{"group": "0", "does": "trains", "step": 1234, "restarts": 0, "host": ""}, GROUP],
    "losses": [
        {
            "t": 0.0,
            "reason": "group 1 is lost.",
            "exit": "killed by SIGKILL",
            "step": 1200,
            "released": 0.012,
            "regrouped": 0.05,
            "committed": 0.2,
            "stood": 0.3,
            "rejoined": None,
        }
    ],
    "page": "http://127.0.0.1:29520/",
}
HOSTILE = "a\x1b[31m\nb\u202e<b>[red]"


def test_a_run_that_trains() -> None:
    text = lines.text(STATUS)
    assert text[0] == "training at step 1,234, 4.0 s a step, 1 of 2 groups train, quorum q7 is 3 min old"
    assert text[1] == "1 group has waited for 3.5 s: Waiting for group 2."
    assert text[3:6] == [
        "group  does    step   restarts",
        "0      trains  1,234",
        "1      heals   1,234  2         copies from group 0 (on node-b)",
    ]
    assert text[8].endswith(
        "group 1 is lost. (killed by SIGKILL; at step 1,200; no commit for 300 ms; "
        "others released 12 ms; next quorum 50 ms; goes on 200 ms)"
    )
    more = {"counts": {"commits": 1500, "dropped_steps": 2}, "durations": {"step": {"number": 9, "mean": 0.25}}}
    assert lines.text(STATUS | more)[1] == "1,500 commits of groups, 2 dropped, a step takes 250 ms"
    assert text[-1] == "Page: http://127.0.0.1:29520/"
    assert lines.page(STATUS | {"address": "http://127.0.0.1:29510"}) == "http://127.0.0.1:29520/"
    elsewhere = lines.page(STATUS | {"address": "http://192.0.2.7:29510"})  # an address that nobody has
    assert elsewhere == "http://127.0.0.1:29520/ on 192.0.2.7; from here: ssh -L 29520:127.0.0.1:29520 192.0.2.7"


def test_what_comes_from_the_network_steers_no_terminal() -> None:
    hostile = {
        "state": HOSTILE,
        "groups": [dict.fromkeys(("group", "does", "more", "host"), HOSTILE)],
        "verdict": {"sentence": HOSTILE},
        "losses": [{"reason": HOSTILE, "exit": HOSTILE}],
        "page": HOSTILE,
    }
    shown = "\n".join(lines.text(hostile))
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "a?[31m b?<b>[red]" in shown
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=200).print(picture(hostile, 40))
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())
    assert "a?[31m b?<b>[red]" in out.getvalue()  # no markup of rich's either


def test_odd_values_are_shown_as_nothing() -> None:
    for odd in ({}, {"groups": 3, "losses": [1], "quorum": 7, "waiting": []}, {"step": "x", "step_rate": True}):
        assert lines.text(odd)[0].startswith("? at step 0")


def test_too_many_groups_for_the_terminal() -> None:
    groups = [{"group": str(n), "does": "trains"} for n in range(99)] + [{"group": "99", "does": "lost"}]
    out = io.StringIO()
    Console(file=out, width=80).print(picture({**STATUS, "groups": groups}, 30))
    shown = out.getvalue()
    assert "and 82 more that train" in shown
    assert "lost" in shown


def test_how_a_run_ended() -> None:
    assert lines.ended({"t": 0.0, "code": 0, "reason": "All 2 groups finished."}).startswith("finished at 1970-01-01")
    assert "failed with code 1 at" in lines.ended({"t": 0.0, "code": 1, "reason": "only 1 of 2"})

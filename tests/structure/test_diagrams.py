from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from tests.sim import swarm
from tests.structure import diagrams, machines, source
from tests.structure.drawing import CHAR, SIZE
from torchft_x.core.group.machine import Group
from torchft_x.core.group.phase import TRANSITIONS, Phase
from torchft_x.core.lighthouse.machine import Lighthouse

ROOT = Path(__file__).parents[2]
NAMES = ("packages.svg", *diagrams.PHASES, *diagrams.TRANSITIONS, *diagrams.EVENTS)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return diagrams.drawn(ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_the_diagrams_show_the_code_as_it_is(name: str, drawn: dict[str, str]) -> None:
    path = ROOT / diagrams.FOLDER / name
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    same = written == drawn[name]  # not compared by pytest, which would print both
    assert same, f"{path.relative_to(ROOT)} is out of date: ./scripts/structure --diagrams"


def test_no_diagram_is_left_of_something_that_is_gone() -> None:
    assert {p.name for p in (ROOT / diagrams.FOLDER).glob("*.svg")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_lies_on_another_and_all_is_inside(name: str, drawn: dict[str, str]) -> None:
    root = ET.fromstring(drawn[name])
    texts = []
    for text in root.iter(f"{SVG}text"):
        if text.get("transform") is None:  # the slanted headings stand 26 pixels apart
            words, x, y = text.text or "", float(text.get("x", 0)), float(text.get("y", 0))
            width = len(words) * CHAR
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
            texts.append((left, y - SIZE + 1, left + width, y + 3, words))
    for a, b in combinations(texts, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"{a[4]!r} and {b[4]!r}"
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert all(t[0] >= 0 and t[1] >= 0 and t[2] <= width and t[3] <= height for t in texts)


def test_no_arrow_between_packages_runs_behind_a_box(drawn: dict[str, str]) -> None:
    root = ET.fromstring(drawn["packages.svg"])
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("x") is not None]
    spans = [[float(b.get(k, 0)) for k in ("x", "y", "width", "height")] for b in boxes]
    for path in root.iter(f"{SVG}path"):
        d = path.get("d", "")
        for x, y in re.findall(r"([\d.]+),([\d.]+) V", d):  # where it passes a layer
            assert not any(left <= float(x) <= left + wide and top == float(y) for left, top, wide, _ in spans), d


def test_what_the_machines_do_is_in_the_diagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dots may be more than what happens, but never less."""
    seen: dict[type, dict[str, set[str]]] = {Group: defaultdict(set), Lighthouse: defaultdict(set)}

    def watch(cls: type) -> None:
        handle = cls.handle  # type: ignore[attr-defined]

        def watched(self: object, event: object, now: float) -> list[object]:
            effects = list(handle(self, event, now))
            seen[cls][type(event).__name__].update(type(e).__name__ for e in effects)
            return effects

        monkeypatch.setattr(cls, "handle", watched)

    for cls in seen:
        watch(cls)
    for seed in range(2):
        swarm.run(seed)
    modules = source.read(ROOT, "core")
    for cls, events in seen.items():
        machine = machines.machine(modules, cls.__module__.removeprefix("torchft_x."))
        assert len(events) > 5
        for event, effects in events.items():
            assert effects <= machine.leads_to[event] | machine.always, event


def test_the_phases_of_a_group() -> None:
    module = next(m for m in source.read(ROOT, "core") if m.name == "core.group.phase")
    phases = machines.transitions(module, "Phase", "TRANSITIONS")
    assert phases.names == tuple(p.name for p in Phase)
    assert [(v.before[0], v.after, v.name) for v in phases.verbs] == [
        (before.name, after.name, words) for (before, after), words in TRANSITIONS.items()
    ]


def test_the_phases_of_a_step() -> None:
    module = next(m for m in source.read(ROOT, "core") if m.name == "core.commit.step")
    phases = machines.phases(module, "Step", "Phase")
    verbs = {v.name: v for v in phases.verbs}
    assert phases.names == ("IDLE", "ASKING", "RUNNING", "VOTING")
    assert (verbs["begin"].before, verbs["begin"].after) == (("ASKING",), "RUNNING")
    assert (verbs["vote"].before, verbs["vote"].after) == (("RUNNING",), "VOTING")
    assert verbs["ask"].before == ("IDLE", "RUNNING")
    assert verbs["fail"].before == phases.names

"""The diagrams of docs/diagrams, each made from a table or from the text of the code."""

from __future__ import annotations

from pathlib import Path

from tests.structure import machines, packages, pictures, source
from tests.test_rooms import WALLS

FOLDER = Path("docs") / "diagrams"
# File name: module, class, enum of its phases.
PHASES = {"step_phases.svg": ("core.commit.step", "Step", "Phase")}
# File name: module, enum of the phases, table of the ways between them.
TRANSITIONS = {"group_phases.svg": ("core.group.phase", "Phase", "TRANSITIONS")}
# File name: module with one class that has `handle`.
EVENTS = {"group_events.svg": "core.group.machine", "lighthouse_events.svg": "core.lighthouse.machine"}


def drawn(root: Path) -> dict[str, str]:
    """File name -> SVG."""
    modules = source.read(root, "core")
    found = {"packages.svg": packages.draw(WALLS)}
    for name, (module, cls, enum) in PHASES.items():
        phases = machines.phases(next(m for m in modules if m.name == module), cls, enum)
        found[name] = pictures.draw_phases(phases, f"Phases of {cls} ({module}) and the verbs between them")
    for name, (module, enum, table) in TRANSITIONS.items():
        phases = machines.transitions(next(m for m in modules if m.name == module), enum, table)
        found[name] = pictures.draw_phases(phases, f"The ways between phases in {module}")
    for name, module in EVENTS.items():
        machine = machines.machine(modules, module)
        found[name] = pictures.draw_events(machine, f"{machine.name} ({module}): what each event may lead to")
    return found


def write(root: Path) -> list[Path]:
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in drawn(root).items():
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths

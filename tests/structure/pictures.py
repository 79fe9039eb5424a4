"""The machines of core as pictures: phases with the verbs between them, and which event leads to which effect."""

from __future__ import annotations

from tests.structure.drawing import LINE, Sheet, width_of
from tests.structure.machines import Machine, Phases

MARGIN = 24.0
STATE = (120.0, 34.0)  # width and height of a phase's box
LANE = 34.0  # between two arrows that pass below
COLUMN, ROW = 26.0, 20.0  # of the table of events and effects
_SLANT = 0.7072  # sine and cosine of the headings' 45 degrees


def draw_phases(phases: Phases, title: str) -> str:
    """The phases from left to right. Verbs that stay in a phase stand above it, those that may come in any at the end."""
    at = {name: number for number, name in enumerate(phases.names)}
    stays: dict[str, list[str]] = {name: [] for name in at}
    moves: dict[tuple[str, str], list[str]] = {}
    anywhere = []
    for verb in phases.verbs:
        for phase in verb.before:
            if verb.after and verb.after != phase:
                moves.setdefault((phase, verb.after), []).append(verb.name)
            elif set(verb.before) != set(at):
                stays[phase].append(verb.name)
        if not verb.after and set(verb.before) == set(at):
            anywhere.append(verb.name)
    ahead = {pair: verbs for pair, verbs in moves.items() if at[pair[1]] == at[pair[0]] + 1}
    below = sorted((p for p in moves if p not in ahead), key=lambda p: (abs(at[p[0]] - at[p[1]]), at[p[0]]))

    width, height = STATE
    gap = max([width_of(", ".join(verbs)) for verbs in ahead.values()], default=0.0) + 60
    top = MARGIN + LINE * (2 + max(len(v) for v in stays.values()))
    lanes = _lanes(below, at)
    depth = max(lanes.values(), default=0) * LANE
    words = f"In any phase: {', '.join(anywhere)}." if anywhere else ""
    wide = 2 * MARGIN + len(at) * width + (len(at) - 1) * gap
    sheet = Sheet(max(wide, 2 * MARGIN + width_of(words)), top + height + depth + 2 * LINE + MARGIN, title)
    sheet.text(MARGIN, MARGIN, title, "weak")
    left = {name: MARGIN + number * (width + gap) for name, number in at.items()}
    for (start, end), verbs in ahead.items():
        y = top + height / 2
        sheet.path(f"M{left[start] + width:.1f},{y:.1f} H{left[end]:.1f}")
        sheet.text((left[start] + width + left[end]) / 2, y - 6, ", ".join(verbs), anchor="middle")
    for pair in below:
        from_x, to_x = (_port(name, pair, below, lanes, at, left[name]) for name in pair)
        y, deep = top + height, top + height + lanes[pair] * LANE
        bend = 8 if to_x > from_x else -8
        sheet.path(
            f"M{from_x:.1f},{y:.1f} V{deep - 8:.1f} Q{from_x:.1f},{deep:.1f} {from_x + bend:.1f},{deep:.1f} "
            f"H{to_x - bend:.1f} Q{to_x:.1f},{deep:.1f} {to_x:.1f},{deep - 8:.1f} V{y:.1f}"
        )
        sheet.text((from_x + to_x) / 2, deep - 5, ", ".join(moves[pair]), anchor="middle")
    for name in at:
        sheet.box(left[name], top, width, height, "state", radius=height / 2)
        sheet.text(left[name] + width / 2, top + height / 2 + 4, name, "strong", "middle")
        for number, verb in enumerate(reversed(stays[name])):
            sheet.text(left[name] + width / 2, top - 8 - number * LINE, verb, anchor="middle")
    sheet.text(MARGIN, top + height + depth + 2 * LINE, words)
    return sheet.svg()


def _lanes(below: list[tuple[str, str]], at: dict[str, int]) -> dict[tuple[str, str], int]:
    """How deep each of these arrows runs: shorter ones above longer ones, side by side where there is room."""
    lanes: dict[tuple[str, str], int] = {}
    taken: list[tuple[int, int, int]] = []  # lane, from, to
    for pair in below:
        low, high = sorted((at[pair[0]], at[pair[1]]))
        lane = 1 + max((n for n, a, b in taken if a < high and low < b), default=0)
        taken.append((lane, low, high))
        lanes[pair] = lane
    return lanes


def _port(
    name: str,
    pair: tuple[str, str],
    below: list[tuple[str, str]],
    lanes: dict[tuple[str, str], int],
    at: dict[str, int],
    left: float,
) -> float:
    """Where an arrow touches the lower edge of a phase's box, so that none crosses another there."""

    def key(one: tuple[str, str]) -> tuple[int, int]:
        other = one[0] if one[1] == name else one[1]
        return (0, lanes[one]) if at[other] < at[name] else (1, -lanes[one])

    order = sorted((p for p in below if name in p), key=key)
    return left + STATE[0] * (order.index(pair) + 1) / (len(order) + 1)


def draw_events(machine: Machine, title: str) -> str:
    """A table: an event in each row, an effect in each column, a dot where the one may lead to the other."""
    rows = [(event, machine.leads_to[event], event in machine.not_taken) for event in machine.leads_to]
    if machine.always:
        rows.append(("any of these", machine.always, False))
    names = max(width_of(name) for name, _, _ in rows)
    slanted = max(width_of(effect) for effect in machine.effects) * _SLANT
    top, left = MARGIN + 2 * LINE + slanted, MARGIN + names + 16
    right = left + COLUMN * len(machine.effects)
    width = max(right + slanted, MARGIN + width_of(title)) + MARGIN
    sheet = Sheet(width, top + ROW * len(rows) + MARGIN + 8, title)
    sheet.text(MARGIN, MARGIN, title, "weak")
    for number, effect in enumerate(machine.effects):
        sheet.text(left + COLUMN * (number + 0.5) + 4, top - 8, effect, turn=-45)
    for number, (name, effects, not_taken) in enumerate(rows):
        last = name not in machine.leads_to
        y = top + ROW * number + (8 if last else 0)
        if last:
            sheet.path(f"M{MARGIN:.1f},{y - 4:.1f} H{right:.1f}", arrow=False, css="rule")
        elif number % 2 == 0:
            sheet.box(MARGIN, y, right - MARGIN, ROW, "band", radius=0)
        sheet.text(left - 8, y + ROW / 2 + 4, name, "weak" if not_taken or last else "", "end")
        for column, effect in enumerate(machine.effects):
            if effect in effects:
                sheet.dot(left + COLUMN * (column + 0.5), y + ROW / 2)
        if not_taken:
            sheet.text(left + 8, y + ROW / 2 + 4, "no case", "weak")
    return sheet.svg()

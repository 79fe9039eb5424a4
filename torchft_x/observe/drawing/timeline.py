"""Timeline of a run in three rows: the groups' activities, the number of contributors, and the batches per second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchft_x.observe.drawing.shapes import Sheet, clock, moments, seconds
from torchft_x.observe.run.values import Group, Loss, Run, Span

LEFT, PLOT, RIGHT = 110.0, 960.0, 30.0
ROW = 20.0
MOST_GROUPS = 100  # rows, for the first groups
_MOST_SPANS, _MOST_MARKS = 4000, 1500  # so that the file stays small
_BAND = 90.0  # height of the two curves


class Timeline:
    """Drawing of one run. The x axis is time, from the first event to the last."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._begin, self._length = run.began, max(run.ended - run.began, 1e-3)
        self._marked = dearest(run.losses, _MOST_MARKS)
        pixel = self._length / PLOT  # seconds
        self._spans = [visible(g.spans, pixel) for g in run.groups[:MOST_GROUPS]]
        while sum(map(len, self._spans)) > _MOST_SPANS:
            pixel *= 2
            self._spans = [visible(spans, pixel) for spans in self._spans]

    def draw(self) -> Sheet:
        shown = self.run.groups[:MOST_GROUPS]
        rows = 30 + ROW * (len(shown) + 1)
        sheet = self._sheet = Sheet(LEFT + PLOT + RIGHT, rows + 2 * (_BAND + 34) + 6, "What each group did when")
        self._axis(rows + 2 * (_BAND + 34) - 16)
        sheet.text(LEFT - 10, 26 + 11, "lighthouse", anchor="end")
        self._lighthouse(26)
        for k, group in enumerate(shown):
            self._group(group, self._spans[k], 26 + ROW * (k + 1))
        self._contributors(rows + 24)
        self._rate(rows + _BAND + 58)
        return sheet

    def _x(self, t: float) -> float:
        return LEFT + PLOT * min(1.0, max(0.0, (t - self._begin) / self._length))

    def _axis(self, bottom: float) -> None:
        for at in moments(self._length):
            x = self._x(self._begin + at)
            self._sheet.line(x, 22, x, bottom, "grid")
            self._sheet.text(
                x, bottom + 16, seconds(at) if self._length < 60 else clock(at).removesuffix(".0"), anchor="middle"
            )

    def _lighthouse(self, y: float) -> None:
        self._sheet.box(LEFT, y + 6, PLOT, 4, "serving")
        for loss in self._marked:
            if not loss.group:
                self._loss(loss, y)

    def _loss(self, loss: Loss, y: float) -> None:
        what = f"{loss.by.kind} by chaos" if loss.by is not None else loss.kind
        kind = "fault" if loss.by is not None or loss.kind not in ("left", "left out") else "mild"
        self._sheet.mark(self._x(loss.t), y + 5, kind, f"{clock(loss.t - self._begin)}: {what}. {loss.reason}")

    def _group(self, group: Group, spans: Sequence[Span], y: float) -> None:
        sheet = self._sheet
        sheet.text(LEFT - 10, y + 13, group.name if len(group.name) < 15 else group.name[:13] + "…", anchor="end")
        for span in spans:
            x, end = self._x(span.begin), self._x(span.end)
            title = f"group {group.name}: {span.what}, {seconds(span.end - span.begin)} from {clock(span.begin - self._begin)} on"
            sheet.box(x, y + 3, end - x, ROW - 6, span.what, title)
        for loss in self._marked:
            if loss.group == group.name and loss.group:
                self._loss(loss, y)

    def _contributors(self, top: float) -> None:
        sheet, quorums = self._sheet, self.run.quorums
        highest = max((q.contributors for q in quorums), default=1) or 1
        bottom = top + _BAND
        sheet.text(LEFT - 10, top + 10, highest, anchor="end")
        sheet.text(LEFT - 10, bottom, 0, anchor="end")
        sheet.text(LEFT, top - 6, "groups that contribute to a step (each quorum is a stair)")
        points = [(LEFT, bottom)]
        trained = self.run.trained[1] if self.run.trained is not None else self.run.ended
        for q in quorums:
            x, end = self._x(q.t), self._x(q.until if q.until is not None else max(q.t, trained))
            y = bottom - _BAND * q.contributors / highest
            if end - points[-1][0] > 0.4 or q.until is None:  # shorter ones are invisible
                points += [(x, points[-1][1]), (x, y), (end, y)]
        sheet.path([*points, (points[-1][0], bottom)], "stairs")
        sheet.line(LEFT, bottom, LEFT + PLOT, bottom, "axis")

    def _rate(self, top: float) -> None:
        sheet, run, bottom = self._sheet, self.run, top + _BAND
        sheet.text(LEFT, top - 6, "batches committed a second; dashed: what all groups make when nothing happens")
        sheet.line(LEFT, bottom, LEFT + PLOT, bottom, "axis")
        if run.trained is None or not run.rate:
            return
        full = run.goodput.groups / run.goodput.usual if run.goodput is not None else 0.0
        highest = max(sorted(run.rate)[int(0.98 * (len(run.rate) - 1))], full) * 1.15 or 1.0
        begin, end = self._x(run.trained[0]), self._x(run.trained[1])
        width = (end - begin) / len(run.rate)
        points = [
            (begin + width * (k + d), bottom - _BAND * min(1.0, value / highest))
            for k, value in enumerate(run.rate)
            for d in (0, 1)
        ]
        sheet.path([(begin, bottom), *points, (end, bottom)], "rate")
        y = bottom - _BAND * full / highest
        sheet.line(LEFT, y, LEFT + PLOT, y, "dashed")
        sheet.text(LEFT - 10, y + 4, f"{full:.3g}/s", anchor="end")


def dearest(losses: Sequence[Loss], most: int) -> Sequence[Loss]:
    """Return the at most `most` losses that delayed the job longest, in their order."""
    if len(losses) <= most:
        return losses
    chosen = {id(loss) for loss in sorted(losses, key=lambda loss: -loss.stood)[:most]}
    return [loss for loss in losses if id(loss) in chosen]


def visible(spans: Iterable[Span], pixel: float) -> list[Span]:
    """Merge spans of one kind less than half a pixel apart, drop others shorter than that. `pixel`: seconds."""
    shown: list[Span] = []
    for span in spans:
        last = shown[-1] if shown else None
        if last is not None and last.what == span.what and span.begin - last.end < pixel / 2:
            shown[-1] = Span(begin=last.begin, end=max(last.end, span.end), what=span.what)
        elif last is not None and span.end - last.begin < pixel / 2:
            continue
        else:
            shown.append(span)
    return shown

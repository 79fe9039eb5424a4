"""A run as one HTML file without network or script, light or dark as in the reader's browser.

All text from events goes through `safe`, and the page's own policy forbids scripts and every address.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from torchft_x._version import __version__
from torchft_x.observe.console import plural
from torchft_x.observe.drawing import charts
from torchft_x.observe.drawing.figures import FIGURES, doubts, kinds, lost, ratio, samples, state, usual, words
from torchft_x.observe.drawing.shapes import amount, clock, safe, seconds
from torchft_x.observe.drawing.text import what
from torchft_x.observe.drawing.timeline import MOST_GROUPS, Timeline, dearest
from torchft_x.observe.run.values import Group, Loss, Run

MOST_LOSSES = 400  # rows of the table, for the most expensive losses
_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--panel:#f6f7f9;--ink:#1c2330;--dim:#667085;--grid:#e3e6eb;
--train:#2f7ed8;--join:#f0a830;--start:#b8c0cc;--out:#d9534f;--fault:#c2201c;--ok:#2e9d5b;--violet:#8b5fbf}
@media (prefers-color-scheme:dark){:root{--ground:#12151b;--panel:#1b2029;--ink:#e4e8ef;--dim:#98a2b3;--grid:#2b323e;
--train:#4f9bf0;--join:#e0a43c;--start:#56606f;--out:#e0706c;--fault:#ff6b66;--ok:#4cc07d;--violet:#a987dd}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:24px 20px 48px;background:var(--ground);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:22px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:16px;margin:30px 0 8px}p{margin:4px 0;overflow-wrap:anywhere}
.dim{color:var(--dim);font-size:13px}.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0 4px}
.tile{background:var(--panel);border-radius:8px;padding:10px 14px;min-width:128px;flex:1}.tile b{display:block;font-size:21px;white-space:nowrap;
font-weight:600}.tile span{color:var(--dim);font-size:12.5px}
.panel{background:var(--panel);border-radius:8px;padding:10px;overflow-x:auto}.pair{display:flex;flex-wrap:wrap;gap:12px}
.pair .panel{flex:1 1 400px;max-width:calc(50% - 6px)}@media (max-width:860px){.pair .panel{max-width:100%}}svg{display:block;width:100%;height:auto;min-width:380px}.panel.wide svg{min-width:760px}
table{border-collapse:collapse;width:100%;font-size:13.5px}th,td{text-align:left;padding:4px 10px 4px 0;vertical-align:middle;
border-bottom:1px solid var(--grid)}th{font-weight:600;color:var(--dim);white-space:nowrap}td.n,th.n{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}td.w{overflow-wrap:anywhere;min-width:200px}td svg,th svg{width:260px;min-width:260px}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:12.5px;color:var(--dim);margin:6px 2px}.key i{display:inline-block;width:12px;
height:12px;border-radius:2px;margin-right:5px;vertical-align:-1px}
text{fill:var(--dim);font-size:11.5px}.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--dim);fill:none;opacity:.6}
.dashed{stroke:var(--dim);stroke-dasharray:5 4;fill:none}.serving{fill:var(--grid)}
.training{fill:var(--train)}.joining{fill:var(--join)}.starting{fill:var(--start)}.out{fill:var(--out);opacity:.45}
.fault{fill:var(--fault)}.mild{fill:var(--join)}.stairs{fill:var(--train);opacity:.35}.rate{fill:var(--ok);opacity:.45}
.curve{stroke:var(--train);stroke-width:1.8;fill:none}.other{stroke:var(--join);stroke-width:1;fill:none}.bar{fill:var(--train)}
.clear{fill:transparent}.p-detected{fill:var(--fault)}.p-released{fill:var(--out)}.p-regrouped{fill:var(--join)}.p-committed{fill:var(--ok)}
.p-restarted{fill:var(--start)}.p-healed{fill:var(--violet)}.p-back{fill:var(--train)}.p-whole{fill:var(--train)}
"""
_PHASES = (
    ("detected", "--fault", "until somebody knows"),
    ("released", "--out", "the others are out of their collectives"),
    ("regrouped", "--join", "they have a quorum without it"),
    ("committed", "--ok", "they commit"),
    ("restarted", "--start", "its next attempt runs"),
    ("healed", "--violet", "and holds the state"),
    ("back", "--train", "and commits with the others"),
)


def page(run: Run, now: float, other: Run | None = None) -> str:
    """Return a run as an HTML page. `now`: unix seconds; `other`: a run to compare with."""
    title = safe(os.path.basename(os.path.normpath(run.run_dir)))
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{safe(state(run, now), 600)}</p>",
        *(f'<p class="dim">{safe(text, 400)}</p>' for text in doubts(run)),
        _tiles(run),
        f"<p>Samples: {samples(run)}.</p>" if run.samples is not None else "",
        _against(run, other) if other is not None else "",
        "<h2>What happened when</h2>",
        f'<div class="panel wide">{Timeline(run).draw().svg()}</div>',
        _key([("--train", "trains"), ("--join", "joins, heals"), ("--start", "starts"), ("--out", "left out"),
              ("--fault", "▼ a fault, a loss")]),
        _groups_left_out(run),
        _losses(run),
        _goodput(run),
        _charts(run, other),
        _list("What failed besides", run.errors),
        _list("New lineages", (f"{x.reason}: {plural(x.steps, 'step')}" for x in run.lineages[:50])),
        f'<p class="dim">torchft_x {__version__}; {run.events:,} events of {safe(run.run_dir)}</p>',
    ]  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _tiles(run: Run) -> str:
    trained = run.trained[1] - run.trained[0] if run.trained else 0.0
    tiles = [
        (f"{run.steps:,}", "steps committed"),
        (f"{100 * run.goodput.share:.1f} %" if run.goodput else "-", "goodput"),
        (str(len(lost(run))), "losses of groups"),
        (seconds(usual(lost(run), "committed")), "until the others' next commit"),
        (seconds(usual(lost(run), "back")), "until the group was back"),
        (clock(trained), "of training"),
        (str(len(run.groups)), "groups"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{b}</b><span>{s}</span></div>' for b, s in tiles)
        + "</div>"
    )


def _key(entries: Iterable[tuple[str, str]]) -> str:
    return (
        '<div class="key">'
        + "".join(f'<span><i style="background:var({c})"></i>{w}</span>' for c, w in entries)
        + "</div>"
    )


def _against(run: Run, other: Run) -> str:
    name = safe(os.path.basename(os.path.normpath(other.run_dir)))
    rows = "".join(
        f'<tr><td>{f.name}</td><td class="n">{words(f, run)}</td><td class="n">{words(f, other)}</td>'
        f'<td class="n">{ratio(f, run, other)}</td></tr>'
        for f in FIGURES
    )
    head = f'<tr><th></th><th class="n">this run</th><th class="n">{name}</th><th class="n">this / that</th></tr>'
    return f'<h2>Against {name}</h2><div class="panel"><table>{head}{rows}</table></div>'


def _groups_left_out(run: Run) -> str:
    rest = len(run.groups) - MOST_GROUPS
    return f'<p class="dim">{plural(rest, "more group")} not drawn.</p>' if rest > 0 else ""


def _losses(run: Run) -> str:
    if not run.losses:
        return "<h2>Losses</h2><p>Nobody was lost.</p>"
    shown = dearest(run.losses, MOST_LOSSES)
    most = charts.longest(shown)
    head = (
        '<tr><th class="n">at</th><th>group</th><th>what</th><th class="n">knew</th><th class="n">others commit</th>'
        f'<th class="n">back</th><th>{charts.bar_axis(most)}</th><th class="n">stood</th>'
        '<th class="n" title="steps dropped, reduced again, committed without it, thrown away">steps</th></tr>'
    )
    rest = len(run.losses) - len(shown)
    more = f'<p class="dim">The {len(shown)} that cost most; {rest} more are in --json.</p>' if rest else ""
    return (
        f"<h2>Losses: {safe(kinds(run.losses))}</h2>"
        f'<div class="panel"><table>{head}{"".join(_loss(x, run, most) for x in shown)}</table></div>{more}'
        + _key((color, told) for _, color, told in _PHASES)
        + '<p class="dim">Seconds count from the fault, on a logarithmic axis. <i>stood</i>: seconds without a commit beyond '
        "a usual step. <i>steps</i>: dropped / reduced again / committed without it / thrown away.</p>"
    )


def _loss(loss: Loss, run: Run, most: float) -> str:
    at = dict(loss.phases)
    times = "".join(
        f'<td class="n">{seconds(max(0.0, at[name])) if name in at else "-"}</td>'
        for name in ("detected", "committed", "back")
    )
    return (
        f'<tr><td class="n">{clock(loss.t - run.began)}</td><td>{safe(loss.group, 24) if loss.group else "lighthouse"}</td>'
        f'<td class="w">{safe(what(loss, 160))}</td>{times}<td>{charts.phase_bar(loss, most)}</td>'
        f'<td class="n">{seconds(loss.stood)}</td>'
        f'<td class="n">{loss.dropped}/{loss.redone}/{loss.without}/{loss.thrown}</td></tr>'
    )


def _goodput(run: Run) -> str:
    g = run.goodput
    if g is None:
        return "<h2>Goodput</h2><p>Too few steps were committed to tell.</p>"
    other = max(0.0, g.could - g.batches - g.missing)
    return (
        f"<h2>Goodput: {100 * g.share:.1f} %</h2><p>{g.batches:,} batches were committed. {plural(g.groups, 'group')} that all train all the "
        f"time, with a step each {seconds(g.usual)}, could have made {g.could:,.0f}. {g.missing:,} of those that are missing are of "
        f"groups that were away while the others went on, {other:,.0f} of times without a step, or of steps that took longer.</p>"
    )


def _charts(run: Run, other: Run | None) -> str:
    runs = [run] if other is None else [run, other]
    found = [charts.loss_curve(runs, by).svg() for by in ("step", "time")] if any(r.curve for r in runs) else []
    found += [charts.histogram(run.step_times).svg()] if run.step_times is not None else []
    note = "" if any(r.curve for r in runs) else '<p class="dim">No script told its loss (Manager.log).</p>'
    found.append(_groups(run))
    return (
        "<h2>Steps and groups</h2>"
        + note
        + '<div class="pair">'
        + "".join(f'<div class="panel">{svg}</div>' for svg in found)
        + "</div>"
    )


def _groups(run: Run) -> str:
    rows = "".join(_group(group) for group in run.groups[:MOST_GROUPS])
    head = (
        '<tr><th>group</th><th class="n">workers</th><th class="n">attempts</th><th class="n">commits</th>'
        '<th class="n">sent in reductions</th></tr>'
    )
    c = run.checkpoints
    saved = (
        f"<p>{plural(c.number, 'checkpoint')}, the newest of step {c.step}: {amount(c.bytes)} in {seconds(c.seconds)} "
        "beside the training.</p>"
        if c.number
        else ""
    )
    return f"<table>{head}{rows}</table>{saved}"


def _group(group: Group) -> str:
    return (
        f'<tr><td class="w">{safe(group.name)}</td><td class="n">{group.workers}</td>'
        f'<td class="n">{len(group.attempts)}</td>'
        f'<td class="n">{group.commits:,}</td><td class="n">{amount(group.bytes)}</td></tr>'
    )


def _list(title: str, sentences: Iterable[str]) -> str:
    lines = "".join(f"<p>{safe(s, 600)}</p>" for s in sentences)
    return f"<h2>{title}</h2>{lines}" if lines else ""

"""``torchft_x status``, ``kill``, ``drain``, ``resume`` and ``pause``.

Exit codes: 0 done, 1 failed, 2 usage error, 3 no lighthouse of the run serves.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from torchft_x.address_files import LIGHTHOUSES
from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, TorchftXError, UnreachableError
from torchft_x.launch.status import lines
from torchft_x.launch.status.find import NobodyServesError, Run, find
from torchft_x.observe.events import last_event, last_events
from torchft_x.timing import ANSWER

_HINTS = 10  # largest number of lines about pods that are printed
EVERY = "*"  # stands for all groups, as in `rpc.lighthouse.page.orders`
_RUN = (
    "a run directory, a lighthouse's address, or a job of kubernetes_ft (kubernetes_ft://NAMESPACE/APP); by default the newest "
    "run below runs/"
)


def status(argv: list[str]) -> int:
    """Run ``torchft_x status`` and return the exit code."""
    parser = Parser(prog="torchft_x status", description="Say what the groups of a run do; docs/operate.md.")
    parser.add_argument("run", nargs="?", metavar="RUN_DIR|ADDRESS|JOB", help=_RUN)
    parser.add_argument("--json", action="store_true", help="print what /status.json says, once")
    parser.add_argument("--once", action="store_true", help="print it once, also in a terminal")
    parser.add_argument(
        "--url", action="store_true", help="print the page's address with the token, for a browser here"
    )
    parser.add_argument("--token_file", metavar="PATH", help="file with the run's token, if not in the run directory")
    args = parser.parse_args(argv)
    try:
        return _status(args)
    except KeyboardInterrupt:  # Ctrl-C is the usual end of the live view
        return 130
    except TorchftXError as e:
        if isinstance(e, NobodyServesError) and e.run_dir is not None:
            known = last_known(e.run_dir, time.time())
            print(json.dumps(known) if args.json else "\n".join(lines.text(known)))
        return _failed("status", e)


def _failed(command: str, error: TorchftXError) -> int:
    """Print the error and return the exit code."""
    print(f"torchft_x {command}: {error}", file=sys.stderr)
    return error.exit_code if isinstance(error, (ConfigError, NobodyServesError)) else 1


def _status(args: argparse.Namespace) -> int:
    run = find(args.run, args.token_file)
    if run.ended is not None:
        print(json.dumps({"ended": dict(run.ended)}) if args.json else f"{run.what} {lines.ended(run.ended)}")
        return 0
    hints = [] if run.remote is None or args.json else run.remote.hints
    for line in hints[:_HINTS]:
        print(lines.plain(line))
    if len(hints) > _HINTS:
        print(f"and {len(hints) - _HINTS} more wait")
    first = _look(run)
    if args.url:
        return _url(run, first)
    if args.json:
        print(json.dumps(first))
    elif args.once or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        print("\n".join(lines.text(first)))
    else:
        from torchft_x.launch.status.live import watch

        try:
            watch(lambda: _look(run), first)
        except UnreachableError:
            run = find(args.run, args.token_file)  # the run may be over, or its lighthouse restarted
            if run.ended is None:
                raise
            print(f"{run.what} {lines.ended(run.ended)}")
    return 0


def _look(run: Run) -> dict[str, Any]:
    if run.remote is not None:
        return run.remote.overview()
    from torchft_x.rpc.status_query import lighthouse_overview

    if run.lighthouse is None:
        raise NobodyServesError(f"No lighthouse of {run.what} answers.", run.run_dir)
    try:
        return lighthouse_overview(run.lighthouse, run.token, ANSWER)
    except UnreachableError as e:
        raise NobodyServesError(str(e), run.run_dir) from None


def _url(run: Run, first: dict[str, Any]) -> int:
    """Print the page's address and return the exit code. The token follows a #, which browsers do not send."""
    token = run.token
    if run.remote is not None:
        print(
            f"torchft_x status: the page is not reached from here: `kubectl port-forward -n {run.remote.cluster.namespace} "
            f"service/{run.remote.app}-lighthouse 29520:page`, then open http://localhost:29520/.",
            file=sys.stderr,
        )
        return 1
    if not first.get("page"):
        print("torchft_x status: this lighthouse has no page (--http_bind).", file=sys.stderr)
        return 1
    print(f"{first['page']}#{urlencode({'token': token})}" if token else first["page"])
    return 0


def order(kind: str, argv: list[str]) -> int:
    """Run ``torchft_x kill``, ``drain``, ``resume`` or ``pause`` and return the exit code."""
    words = {
        "kill": "End the processes of a group at once; its supervisor starts it again.",
        "drain": "Have a group leave at its next step boundary, and rest until it is resumed.",
        "resume": "Start a drained group again, or all of a job that was paused.",
        "pause": "Have all groups of a job leave at their next step boundary, and rest until it is resumed.",
    }
    parser = Parser(prog=f"torchft_x {kind}", description=words[kind])
    if kind != "pause":
        optional: dict[str, Any] = {"nargs": "?", "default": EVERY} if kind == "resume" else {}
        every = "; if none is named, all" if optional else ""
        parser.add_argument("group", metavar="GROUP", help=f"as `torchft_x status` names it{every}", **optional)
    parser.add_argument("run", nargs="?", metavar="RUN_DIR|ADDRESS|JOB", help=_RUN)
    parser.add_argument("--token_file", metavar="PATH", help="file with the run's token, if not in the run directory")
    args = parser.parse_args(argv)
    kind, group = ("drain", EVERY) if kind == "pause" else (kind, args.group)
    if kind == "resume" and args.run is None and (":" in group or "/" in group or Path(group).is_dir()):
        group, args.run = EVERY, group  # no group's name looks like a run directory, an address or a job
    try:
        run = find(args.run, args.token_file)
        if run.remote is not None:
            print(run.remote.order(kind, group))
            return 0
        if run.lighthouse is None:
            raise ConfigError(f"Nothing of {run.what} runs any more.")
        from torchft_x.rpc.status_query import give_order

        print(give_order(kind, group, run.lighthouse, run.token))
    except TorchftXError as e:
        return _failed(kind, e)
    return 0


def last_known(run_dir: Path, now: float) -> dict[str, Any]:
    """Return the overview: each group's newest step and last event, and ``away``, a sentence about the last lighthouse.

    `now` is in Unix seconds.
    """
    groups: dict[str, dict[str, Any]] = {}
    found = [e for role in ("supervisor", "trainer") for e in last_events(run_dir, role) if "group" in e]
    for e in sorted(found, key=lambda e: float(e["t"])):
        group = groups.setdefault(str(e["group"]), {"group": e["group"]})
        group |= {name: e[name] for name in ("step", "host") if name in e}
        group |= {"does": e.get("event"), "more": _when(e, now)}
    ordered = [groups[name] for name in sorted(groups, key=lambda name: (len(name), name))]
    step = max((group.get("step", 0) for group in ordered), default=0)
    return {"state": "away", "step": step, "away": _lighthouse(run_dir, now), "groups": ordered}


def _when(event: dict[str, Any], now: float) -> str:
    """Return the event's age and reason."""
    return ", ".join(filter(None, [f"{lines.seconds(now - event['t'])} ago", str(event.get("reason") or "")]))


def _lighthouse(run_dir: Path, now: float) -> str:
    """Return what became of the last lighthouse, by its lease, else by its last event. '' if there is neither."""
    from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory

    last = last_event(run_dir, "lighthouse")
    with contextlib.suppress(OSError, ValueError):
        # A renewal is a rename in the folder. Each job has its own, and the newest job may have none.
        renewed, folder = max((path.stat().st_mtime, path) for path in (run_dir / LIGHTHOUSES).glob("*/lease"))
        lease = LeaseDirectory(folder)
        entry = lease.read()
        if entry is not None and entry.epoch and not (last and renewed < last["t"]):
            how, age = "was renewed last" if entry.owner else "was given back", lines.seconds(now - renewed)
            return f"The lease of the lighthouse at {lease.note(entry) or '?'} (epoch {entry.epoch}) {how} {age} ago."
    return f"The lighthouse's last event is {last.get('event')}, {_when(last, now)}." if last else ""

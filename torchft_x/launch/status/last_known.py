"""Makes an overview of a run from its run directory, while no lighthouse serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchft_x.address_files import folder_of_several
from torchft_x.launch.slurm.store import lease_folder
from torchft_x.launch.status.lines import seconds
from torchft_x.observe.events import last_event, last_events
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory


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
    return ", ".join(filter(None, [f"{seconds(now - event['t'])} ago", str(event.get("reason") or "")]))


def _lighthouse(run_dir: Path, now: float) -> str:
    """Return what became of the last lighthouse, by its lease, else by its last event. '' if there is neither."""
    for folder in (lease_folder(run_dir), folder_of_several(run_dir)):
        lease = LeaseDirectory(folder / "lease")
        try:
            age, entry = seconds(now - lease.folder.stat().st_mtime), lease.read()  # a renewal is a rename in there
        except OSError:
            continue
        if entry is not None and entry.epoch:
            how = "was renewed last" if entry.owner else "was given back"
            return f"The lease of the lighthouse at {lease.note(entry) or '?'} (epoch {entry.epoch}) {how} {age} ago."
    last = last_event(run_dir, "lighthouse")
    return f"The lighthouse's last event is {last.get('event')}, {_when(last, now)}." if last else ""

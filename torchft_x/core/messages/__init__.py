"""Events that go into the machines of core, and effects that come out.

* `lighthouse`, `group`: events and effects of the two machines of those names.
* `job`: those of the job's outcome and its sidecars. `nodes`: those of groups over several nodes.
* `Tick`, `Note`: those of every machine.

The contract between a machine and its shell::

    for effect in machine.handle(event, now):   # decided under the shell's lock, no I/O
        shell.carry_out(effect)                 # done after the lock is released

A shell must deliver the events of one session in order, with `Closed` exactly once and last. It must call
`handle(Tick(), now)` at least every `config.tick` seconds. A *session* is an integer that the shell gives to each
stream; a *call* is one that it gives to each unary request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: check what is due."""


@dataclass(frozen=True, slots=True)
class Note:
    """Write this to the log and event file. `event`: a name of docs/events.md or a log-only name. `text`: a sentence."""

    event: str
    text: str
    replica_id: str = ""
    quorum_id: int = 0
    steps: int | None = None  # number of steps that are lost
    cause: str = ""  # cause of a loss, one of `core.lighthouse.waiting.CAUSES`

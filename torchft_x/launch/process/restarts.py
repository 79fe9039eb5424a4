"""Decides whether a group is restarted. Pure: takes how its attempts ended, returns a decision.

* `max_restarts` restarts are allowed within any hour, so that a job of weeks survives daily faults
  and a broken one stops.
* A *crash loop* is a few quick exits in a row without a committed step, by the program's own doing (an exit code,
  a segmentation fault; not a SIGKILL from outside): a typo, a missing file, not enough memory on the device.
* Exit code 2 before any committed step is by custom a usage error. The same arguments would fail again, so there is no
  second try.
* A Python exception before the script made a Manager, or after it had finished (`AttemptEnd.fault`), is the script's own.
  If its type points to a typo or a missing module there is no second try; after the same one twice in a row, no third.
* Exit code 73 (`EX_CANTCREAT`) means that the result can't be written. The training is lost, and another try would lose it
  again.
* Exit code 71 (`EX_OSERR`) means that the other groups found its results wrong. Another try would compute on the same host.
* The first restart comes at once. After several attempts in a row without progress there is a back-off, which grows.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING

OWN_FAULTS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
)
"""Signals that a program causes by its own faults."""
FAULTS = frozenset(["ImportError", "IndentationError", "ModuleNotFoundError", "NameError", "SyntaxError", "TabError"])
"""Exceptions that a script raises again in every run."""
UNSAVED = 73  # EX_CANTCREAT of sysexits.h
FAULTY = 71  # EX_OSERR
USAGE = 2  # exit code for a mistake in the arguments: argparse's, ours, and by custom most programs'


@dataclass(frozen=True, kw_only=True)
class RestartRules:
    """Restart budget and back-off. Raises `ConfigError` naming the field that is wrong."""

    max_restarts: int = 10
    """Restarts allowed within an hour."""
    quick: float = TIMING.attempt_quick
    """Seconds. An attempt shorter than this, without a committed step, made no progress."""
    loop: int = 3
    """Number of such attempts in a row, each ended by the program's own fault, that is a crash loop."""
    steps: bool = True
    """Whether the program has a Manager and commits steps."""
    longest_pause: float = 30.0
    """Longest back-off in seconds. The pause before a restart grows 0, 0, 1, 2, 4, ... up to it."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}, it must be 0 or more.")


LIGHTHOUSE_RULES = RestartRules(max_restarts=100, loop=5, longest_pause=2.0, steps=False)
"""Rules for a lighthouse, and for its supervisor: groups wait for it, but only for minutes."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)(: |$)")  # the last line of a traceback, if its text is one


def exception_in(words: Sequence[str]) -> str:
    """Return the exception of the last traceback in these lines, or '' if there is none.

    If its first line ends with a colon, the next line is included.
    """
    if not any(line.startswith('  File "') for line in words):
        return ""
    found = next((i for i in reversed(range(len(words))) if _EXCEPTION.match(words[i])), None)
    if found is None:
        return ""
    text = words[found]
    return f"{text} {words[found + 1].strip()}" if text.endswith(":") and found + 1 < len(words) else text


@dataclass(frozen=True)
class AttemptEnd:
    """End of one attempt of a group: its code and reason, and the facts by which a restart is decided."""

    ok: bool  # whether every worker exited with 0
    code: int  # exit code or -signal of the process that failed first
    reason: str  # for people, such as "worker 0 killed by SIGKILL"
    own_doing: bool  # whether the program failed by itself, not by a signal from outside
    progress: bool  # whether a step was committed
    uptime: float  # seconds
    last_words: tuple[str, ...] = ()  # last lines of that process's stderr
    shown: bool = True  # whether those lines have been passed on already
    fault: str = ""  # last line of the exception that ended it before it had a Manager or after it had finished
    after_end: bool = False  # whether the script had finished
    managed: bool = True  # whether a worker had made a Manager, as far as is known
    asked: bool = False  # whether a person asked for this end

    @property
    def said(self) -> str:
        """Colon and the exception that ended the program, or else its last line; '' if it printed nothing."""
        return f": {exception_in(self.last_words) or self.last_words[-1].strip()}" if self.last_words else ""

    @property
    def explained(self) -> bool:
        """Whether the cause is known, from the program or the person who asked for it, so that no evidence is collected."""
        return (
            self.asked
            or bool(self.fault)
            or self.code in (UNSAVED, FAULTY)
            or (self.code == USAGE and not self.progress)
        )


@dataclass(frozen=True)
class GiveUp:
    """Decision to give the group up, with the reason for people."""

    sentence: str


class RestartPolicy:
    """Restart decisions for one group. Counts its restarts and its attempts without progress."""

    def __init__(self, rules: RestartRules) -> None:
        self.rules = rules  # fixed
        self._times: deque[float] = deque()  # monotonic seconds of the restarts within the window
        self._nothing = 0  # attempts in a row without progress
        self._own = 0  # number of those that ended by the program's own fault
        self._fault = ""  # `AttemptEnd.fault` of the newest attempt, if that was quick or had finished

    def ended(self, end: AttemptEnd, now: float) -> float | GiveUp:
        """Decide at `now` (monotonic seconds) on a restart after an attempt that did not end well. Return the pause in seconds."""
        rules = self.rules
        fault = end.fault if rules.steps else ""  # a program without steps has no Manager to fail before
        again = bool(fault) and fault == self._fault
        self._fault = fault if end.after_end or end.uptime < rules.quick else ""
        if end.progress or end.uptime >= rules.quick:
            self._nothing = self._own = 0
        else:
            self._nothing += 1
            self._own += end.own_doing  # a kill from outside neither counts nor resets it
        while self._times and now - self._times[0] >= 3600.0:
            self._times.popleft()
        if end.code == USAGE and end.own_doing and not end.progress:
            return GiveUp(f"{end.reason}, a mistake in its arguments or settings{end.said}")
        if end.code == UNSAVED:
            return GiveUp(f"{end.reason}: it can't write its result{end.said}")
        if end.code == FAULTY:
            return GiveUp(f"{end.reason}: its host computes wrong results{end.said}")
        if again or fault.partition(":")[0] in FAULTS:
            twice = " twice" if again else ""
            when = "after it had finished" if end.after_end else "before it made a Manager"
            return GiveUp(f"{end.reason}{twice} {when}: {fault}")
        if self._own >= rules.loop:
            before = " before a step was committed" if rules.steps else ""
            return GiveUp(f"{self._own} quick exits in a row{before}, the last: {end.reason}{end.said}")
        if len(self._times) >= rules.max_restarts:
            spent = f"{rules.max_restarts} restarts within the last hour" if rules.max_restarts else "max_restarts is 0"
            return GiveUp(f"{end.reason}{end.said} ({spent})")
        self._times.append(now)
        return 0.0 if self._nothing < 2 else min(2.0 ** (self._nothing - 2), rules.longest_pause)

    @property
    def count(self) -> int:
        """Number of restarts within the last hour."""
        return len(self._times)

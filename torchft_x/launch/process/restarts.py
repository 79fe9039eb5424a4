"""When a group is started again, and when not. Pure: how its lives ended goes in, a decision comes out.

* `max_restarts` restarts are allowed within any `window` (an hour), so that a job of weeks survives daily faults
  and a broken one stops.
* A *crash loop* is a few quick exits in a row without a committed step, by the program's own doing (an exit code,
  a segmentation fault; not a SIGKILL from outside): a typo, a missing file, not enough memory on the device.
* Exit code 2 before any committed step is what programs say about their command line: the same arguments would get
  the same answer, so there is no second try.
* An exception of Python's before the script made a Manager, or after it had finished (`AttemptEnd.fault`), is the script's:
  where its kind says that it is a slip of the keyboard or a missing module there is no second try, and of the same one twice
  in a row no third.
* Exit code 73 (`EX_CANTCREAT`) says that the result can't be written: what was trained is gone, and trying again would
  train it all for nothing.
* The first restart comes at once; only lives in a row that brought nothing are held back, longer each time.
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
"""Signals a program brings on itself."""
FAULTS = frozenset(["ImportError", "IndentationError", "ModuleNotFoundError", "NameError", "SyntaxError", "TabError"])
"""Exceptions that come again whenever the script is started."""
UNSAVED = 73  # EX_CANTCREAT of sysexits.h
USAGE = 2  # exit code of argparse, of ourselves, and by custom of most programs, for a mistake in the arguments


@dataclass(frozen=True, kw_only=True)
class RestartRules:
    """Raises `ConfigError` naming the field."""

    max_restarts: int = 10
    """Restarts allowed within `window`."""
    window: float = 3600.0
    """Seconds."""
    quick: float = TIMING.life_quick
    """A life shorter than this many seconds, without a committed step, brought nothing."""
    loop: int = 3
    """So many such lives in a row that ended by the program's own doing are a crash loop."""
    steps: bool = True
    """Whether what is kept running has a Manager and commits steps."""
    longest_pause: float = 30.0
    """Seconds; the pause before a restart grows 0, 0, 1, 2, 4, ... up to this."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}, it must be 0 or more.")


_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)(: |$)")  # the last line of a traceback, if its text is one


def exception_in(words: Sequence[str]) -> str:
    """Return the exception of the last traceback in these lines, with one line of its text more where the first ends with a
    colon; empty: there is none."""
    if not any(line.startswith('  File "') for line in words):
        return ""
    found = next((i for i in reversed(range(len(words))) if _EXCEPTION.match(words[i])), None)
    if found is None:
        return ""
    text = words[found]
    return f"{text} {words[found + 1].strip()}" if text.endswith(":") and found + 1 < len(words) else text


@dataclass(frozen=True)
class AttemptEnd:
    """How one life of a group ended. `ok`: every worker exited with 0."""

    ok: bool
    code: int  # of the process that failed first: exit code, or -signal
    reason: str  # "worker 0 killed by SIGKILL"
    own_doing: bool  # the program failed by itself, as against a signal from outside
    progress: bool  # a step was committed
    uptime: float  # seconds
    last_words: tuple[str, ...] = ()  # the end of that process's stderr
    shown: bool = True  # whether those words have been passed on already
    fault: str = ""  # the exception that ended it before it had a Manager or after it had finished: its last line
    after_end: bool = False  # it had finished
    managed: bool = True  # a worker had made a Manager, as far as can be known
    asked: bool = False  # a person asked for it

    @property
    def said(self) -> str:
        """A colon and the exception that ended the program, or else its last line; empty if it said nothing."""
        return f": {exception_in(self.last_words) or self.last_words[-1].strip()}" if self.last_words else ""

    @property
    def explained(self) -> bool:
        """All there is to say was said, by the program or whoever asked for it: nothing needs to be collected."""
        return self.asked or bool(self.fault) or self.code == UNSAVED or (self.code == USAGE and not self.progress)


@dataclass(frozen=True)
class Restart:
    number: int  # restarts within the window, this one included
    pause: float  # seconds


@dataclass(frozen=True)
class GiveUp:
    sentence: str


class Restarts:
    """Counts the lives of one group."""

    def __init__(self, rules: RestartRules) -> None:
        self.rules = rules  # fixed
        self._times: deque[float] = deque()  # of the restarts within the window
        self._nothing = 0  # lives in a row that brought nothing
        self._own = 0  # of those, in a row, by the program's own doing
        self._fault = ""  # of the newest life, if that was quick or had finished

    def ended(self, end: AttemptEnd, now: float) -> Restart | GiveUp:
        """Decide at `now` (monotonic seconds) what follows a life that did not end well."""
        rules = self.rules
        fault = end.fault if rules.steps else ""  # what takes no steps has no Manager that it could fail before
        again = bool(fault) and fault == self._fault
        self._fault = fault if end.after_end or end.uptime < rules.quick else ""
        if end.progress or end.uptime >= rules.quick:
            self._nothing = self._own = 0
        else:
            self._nothing += 1
            self._own += end.own_doing  # a kill from outside neither counts nor clears it
        while self._times and now - self._times[0] >= rules.window:
            self._times.popleft()
        if end.code == USAGE and end.own_doing and not end.progress:
            return GiveUp(f"{end.reason}, a mistake in its arguments or settings{end.said}")
        if end.code == UNSAVED:
            return GiveUp(f"{end.reason}: it can't write its result{end.said}")
        if again or fault.partition(":")[0] in FAULTS:
            twice = " twice" if again else ""
            when = "after it had finished" if end.after_end else "before it made a Manager"
            return GiveUp(f"{end.reason}{twice} {when}: {fault}")
        if self._own >= rules.loop:
            before = " before a step was committed" if rules.steps else ""
            return GiveUp(f"{self._own} quick exits in a row{before}, the last: {end.reason}{end.said}")
        if len(self._times) >= rules.max_restarts:
            spent = (
                "max_restarts is 0" if rules.max_restarts == 0 else f"{rules.max_restarts} restarts {self._within()}"
            )
            return GiveUp(f"{end.reason}{end.said} ({spent})")
        self._times.append(now)
        pause = 0.0 if self._nothing < 2 else min(2.0 ** (self._nothing - 2), rules.longest_pause)
        return Restart(len(self._times), pause)

    @property
    def count(self) -> int:
        """Restarts within the window."""
        return len(self._times)

    def _within(self) -> str:
        hours = self.rules.window / 3600
        return "within the last hour" if hours == 1 else f"within the last {self.rules.window:g} s"

"""Description of one process's events for people: which groups died and why, which are back, and the cost.

`Story` makes the lines and prints nothing; feed it the events of `observe.subscribe`, from one thread. `Narrator`
prints them while a script of the user's own trains.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from torchft_x import log_lines
from torchft_x.core.types import BEFORE_END, by_number, group_of
from torchft_x.timing import LOG_AGAIN

TYPICAL = 21  # number of gaps between commits of which the usual step is the median: odd, few enough to follow a change


class Story:
    """History of this group, as lines of text and a few counters.

    `group` is the own group id. Times are monotonic seconds of this process.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.members: frozenset[str] = frozenset()  # groups of the newest quorum that were not lost since
        self.participants: frozenset[str] = frozenset()  # groups of the newest quorum whose gradients count
        self.step = 0  # committed steps
        self.committed_in = 0  # quorum id of the last commit
        self.died: dict[str, float] = {}  # by group: when its death became known; removed once it is back
        self.rejoins = 0
        self.dropped = 0
        self._drop_told: tuple[int, str, float] | None = (
            None  # newest drop since the last commit: step, reason, time of its last line
        )
        self._untold = 0  # drops of this step since that line
        self.lost = 0.0  # seconds beyond a usual step, summed over everything that interrupted training
        self._last_commit: float | None = None
        self._left: set[str] = set()  # groups that took part in the last commit, and left gracefully since
        self.interrupted = False  # a failure has happened since the last commit
        self._gaps: deque[float] = deque(maxlen=TYPICAL)  # seconds between undisturbed commits

    @property
    def speaks(self) -> bool:
        """True if our group prints for all about the newest commit: it is the lowest that took part and is not lost.

        A group that left gracefully since then has printed already.
        """
        alive = (self.participants & self.members) | self._left or self.members
        return not alive or by_number(alive)[0] == self.group

    def sentences(self, event: dict[str, Any]) -> list[str]:
        """Take one event, and return the lines for people, usually none."""
        name = event.get("event")
        now = float(event.get("mono", 0.0))
        if name == "quorum":
            return self._quorum(event, now)
        if name == "member_lost":
            return self._member_lost(event, now)
        if name == "drop":
            return self._drop(event, now)
        if name == "restored":
            return [f"group {self.group} goes on from step {event.get('step')}, which its supervisor holds in memory"]
        if name == "redo":
            known, self.interrupted = self.interrupted, True
            again = f"step {self.step + 1} is reduced again: a reduction failed, and nobody was lost"
            return [] if known else [again]
        if name == "commit":
            return self._commit(event, now)
        return []

    def _quorum(self, event: dict[str, Any], now: float) -> list[str]:
        members = groups(event.get("members"))
        participants = members - groups(event.get("healing"))
        lines = []
        for group in by_number(self.members - members):
            if group not in self.died:  # no event gave the reason; a broken step suggests a death
                lines += self._gone(group, "died (connection lost)" if self.interrupted else "is gone", now)
        for group in by_number(participants - self.participants):
            if group in self.died:
                self.rejoins += 1
                lines.append(
                    f"group {group} rejoined at step {event.get('step', self.step)} "
                    f"({now - self.died.pop(group):.1f} s after it was lost)"
                )
            elif self.participants and group != self.group:
                lines.append(f"group {group} joined at step {event.get('step', self.step)}")
        self.members, self.participants = members, participants
        self.step = int(event.get("step", self.step))
        return lines

    def _drop(self, event: dict[str, Any], now: float) -> list[str]:
        known = self.interrupted  # a death that was printed already is the reason
        self.dropped += 1
        self.interrupted = True
        reason = clause(str(event.get("reason") or ""))
        told = self._drop_told
        if told is not None and told[:2] == (self.step, reason):
            self._untold += 1
            if now - told[2] < LOG_AGAIN:
                return []
            lines = [f"step {self.step + 1} was dropped {self._untold} times more in {now - told[2]:.0f} s ({reason})"]
        else:
            why = "" if not reason or (known and told is None) else f" ({reason})"
            lines = [f"step {self.step + 1} dropped{why}; it is run again"]
        self._drop_told, self._untold = (self.step, reason, now), 0
        return lines

    def _member_lost(self, event: dict[str, Any], now: float) -> list[str]:
        reason = clause(str(event.get("reason") or "connection lost"))
        gone = by_number(groups(event.get("lost")) & self.members)
        early = f" {BEFORE_END}" if BEFORE_END in reason else ""
        how = f"left{early}" if event.get("left") else f"died ({reason})"
        return [line for group in gone for line in self._gone(group, how, now)]

    def _gone(self, group: str, how: str, now: float) -> list[str]:
        self.members -= {group}
        if how.startswith("left"):
            self._left.add(group)
        self.died[group] = now
        self.interrupted, self._drop_told = True, None
        return [f"group {group} {how} at step {self.step}"]

    def _commit(self, event: dict[str, Any], now: float) -> list[str]:
        self.step = int(event.get("step", self.step)) + 1
        self.committed_in = int(event.get("quorum", self.committed_in))
        lines = []
        if self._last_commit is not None:
            gap = now - self._last_commit
            if self.interrupted:
                lost = max(0.0, gap - self.usual_step)
                self.lost += lost
                count = len(self.participants & self.members)
                lines.append(f"training goes on at step {self.step} with {plural(count, 'group')}: {lost:.2f} s lost")
            else:
                self._gaps.append(gap)
        self._last_commit, self.interrupted, self._drop_told = now, False, None
        if event.get("participants") == len(self.participants):
            self._left &= self.participants  # all have voted, so groups that have left did so after this commit
        else:
            self._left.clear()
        return lines

    @property
    def usual_step(self) -> float:
        """Median seconds between undisturbed commits; 0.0 while unknown."""
        return sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0


class Narrator:
    """Printer of an event log's `Story` to stderr. Only the lowest group that takes part prints.

    Events come on any thread; between two losses it prints nothing. The details are in the event log.
    """

    def __init__(self, group: str, say: Callable[[str], object] | None = None) -> None:
        self.story = Story(group)
        self._interrupted = True  # the next commit may produce a line
        # Commits without a line, which the story takes before the next event: cheap, because this happens once a step.
        # It uses no more of them; the length is one above that of its gaps, as the first gap may span forgotten commits.
        self.commits: deque[dict[str, Any]] = deque(maxlen=TYPICAL + 1)
        self._say = say or (lambda line: log_lines.print_line(line, role="trainer", group=group))
        self._lock = threading.Lock()  # guards the story, and keeps its lines in order

    def receive(self, event: dict[str, Any]) -> None:
        """Take an event on the thread that emits it, after those in `commits`."""
        if event["event"] == "commit" and not self._interrupted:
            self.commits.append(event)
            return
        with self._lock:
            while self.commits:
                self._tell(self.commits.popleft())
            self._tell(event)
            self._interrupted = self.story.interrupted

    def _tell(self, event: dict[str, Any]) -> None:
        spoke = self.story.speaks  # a group that hands over to one that is back still prints that
        for line in self.story.sentences(event):
            if spoke or self.story.speaks:
                self._say(line)


def groups(replica_ids: Any) -> frozenset[str]:
    """Return the group ids of one or several replica ids; the empty set for other values (an old log, a count)."""
    if isinstance(replica_ids, str):
        return frozenset([group_of(replica_ids)])
    if not isinstance(replica_ids, (list, tuple, set, frozenset)):
        return frozenset()
    return frozenset(group_of(str(r)) for r in replica_ids)


def clause(sentence: str) -> str:
    """Shorten a reason for use in brackets: ``1:9f2c is lost: its address refuses.`` -> ``its address refuses``."""
    return sentence.rpartition(" is lost: ")[2].rstrip(".")


def harmless(text: object, most: int = 200) -> str:
    """Return a text on one line of at most `most` characters, without control, escape and direction characters.

    Names and reasons come from event logs, which anybody may have written.
    """
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"

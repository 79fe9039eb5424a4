"""The events of one process, told to a person: who died and why, who is back, what it cost.

`Story` decides and prints nothing; feed it what `observe.subscribe` delivers, from one thread. `Narrator` prints it while
a script of the user's own trains.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from torchft_x import log_lines
from torchft_x.core.types import BEFORE_END, group_number, group_of

AGAIN = 60.0  # seconds between two words about a step that is dropped over and over
TYPICAL = 21  # commits whose gaps give the usual length of a step: odd, and short enough to follow a change


class Story:
    """What this group has lived through, in lines of text and a few counters.

    `group` is the own group id. Times are monotonic seconds of this process.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.members: frozenset[str] = frozenset()  # groups of the newest quorum that are not lost since
        self.participants: frozenset[str] = frozenset()  # those of them whose gradients count
        self.step = 0  # committed steps
        self.committed_in = 0  # quorum id of the last commit
        self.died: dict[str, float] = {}  # group -> when this process heard of its death; gone once it is back
        self.deaths = 0
        self.rejoins = 0
        self.dropped = 0
        self._drop_told: tuple[int, str, float] | None = (
            None  # since the last commit: step, reason, when it was told last
        )
        self._untold = 0  # drops of it since then
        self.lost = 0.0  # seconds beyond a usual step, summed over everything that interrupted training
        self._last_commit: float | None = None
        self._left: set[str] = set()  # groups that took part in the last commit, and left in good order since
        self.interrupted = False  # has anything broken since the last commit?
        self._gaps: deque[float] = deque(maxlen=TYPICAL)  # between undisturbed commits

    def __repr__(self) -> str:
        return (
            f"Story(group={self.group!r}, step={self.step}, members={by_number(self.members)}, "
            f"participants={by_number(self.participants)}, deaths={self.deaths}, dropped={self.dropped}, "
            f"lost={self.lost:.2f})"
        )

    @property
    def speaks(self) -> bool:
        """Is the own group the one that talks for all about the newest commit: the lowest by number that took part in it
        and is not lost? Who left in good order since then has said what there was to say."""
        alive = (self.participants & self.members) | self._left or self.members
        return not alive or by_number(alive)[0] == self.group

    def tell(self, event: dict[str, Any]) -> list[str]:
        """Take one event in; lines worth a person's reading come out, usually none."""
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
            return self._redo()
        if name == "commit":
            return self._commit(event, now)
        return []

    def _quorum(self, event: dict[str, Any], now: float) -> list[str]:
        members = groups(event.get("members"))
        participants = members - groups(event.get("healing"))
        lines = []
        for group in by_number(self.members - members):
            if group not in self.died:  # nobody has said why: a broken step speaks for a death
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
        known = self.interrupted  # by a death that was told already: that is the reason
        self.dropped += 1
        self.interrupted = True
        reason = clause(str(event.get("reason") or ""))
        told = self._drop_told
        if told is not None and told[:2] == (self.step, reason):
            self._untold += 1
            if now - told[2] < AGAIN:
                return []
            lines = [f"step {self.step + 1} was dropped {self._untold} times more in {now - told[2]:.0f} s ({reason})"]
        else:
            why = "" if not reason or (known and told is None) else f" ({reason})"
            lines = [f"step {self.step + 1} dropped{why}; it is run again"]
        self._drop_told, self._untold = (self.step, reason, now), 0
        return lines

    def _redo(self) -> list[str]:
        known, self.interrupted = self.interrupted, True
        return [] if known else [f"step {self.step + 1} is reduced again: a reduction failed, and nobody was lost"]

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
        self.deaths += 1
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
            self._left &= self.participants  # all have voted: who has left already did so after this commit
        else:
            self._left.clear()
        return lines

    @property
    def usual_step(self) -> float:
        """Seconds from commit to commit when nothing happens; 0.0 as long as none is known."""
        return sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0


class Narrator:
    """Prints the `Story` of an event log to stderr, in one group for all: the lowest that takes part (`EventLog.narrator`).

    Events come on any thread; between two losses it prints nothing. The details are in the event log.
    """

    def __init__(self, group: str, say: Callable[[str], object] | None = None) -> None:
        self.story = Story(group)
        self.interrupted = True  # the next commit has something to say
        # Commits that had nothing to say: the log puts them here, and the story hears of them before the next event. More
        # than these it makes nothing of; one more than it keeps gaps, as the first gap may span commits that are forgotten.
        self.commits: deque[dict[str, Any]] = deque(maxlen=TYPICAL + 1)
        self._say = say or (lambda line: log_lines.say(line, role="trainer", group=group))
        self._lock = threading.Lock()  # guards the story, and keeps its lines in order

    def hear(self, event: dict[str, Any]) -> None:
        """Take first what is in `commits`, then the event."""
        with self._lock:
            while self.commits:
                self._tell(self.commits.popleft())
            self._tell(event)
            self.interrupted = self.story.interrupted

    def _tell(self, event: dict[str, Any]) -> None:
        spoke = self.story.speaks  # who hands over to a group that is back still tells that it is
        for line in self.story.tell(event):
            if spoke or self.story.speaks:
                self._say(line)


def groups(replica_ids: Any) -> frozenset[str]:
    """Group ids of one or several replica ids; of anything else (an old log, a count) the empty set."""
    if isinstance(replica_ids, str):
        return frozenset([group_of(replica_ids)])
    if not isinstance(replica_ids, (list, tuple, set, frozenset)):
        return frozenset()
    return frozenset(group_of(str(r)) for r in replica_ids)


def by_number(names: frozenset[str] | set[str]) -> list[str]:
    """Group ids in the order people expect: 2 before 10, and those without a number last."""

    def key(name: str) -> tuple[bool, int, str]:
        number = group_number(name)
        return (number is None, number or 0, name)

    return sorted(names, key=key)


def clause(sentence: str) -> str:
    """A reason as it reads in brackets: ``1:9f2c is lost: its address refuses.`` -> ``its address refuses``."""
    return sentence.rpartition(" is lost: ")[2].rstrip(".")


def harmless(text: object, most: int = 200) -> str:
    """On one line, without what a terminal or a page would obey: control characters, escapes, marks that turn the
    direction of writing. Names and reasons come from event logs, which anybody may have written."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"

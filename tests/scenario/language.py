"""Scenario files: what happens to a job, in words, for the simulator and for real processes alike.

::

    groups 3, heartbeat_timeout 1 s, steps 40
    at step 12 kill g1
    300 ms later pause g2 for 2 s; kill g0
    expect all groups at step 40

`parse` makes frozen values of it; every mistake is a sentence that names the line. `tests.scenario.values`
says what each word means.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tests.scenario.values import (
    EVERYBODY,
    LIGHTHOUSE,
    Action,
    AllAt,
    AtStep,
    Cut,
    Deed,
    Expectation,
    Gapless,
    Join,
    Kill,
    Later,
    Leave,
    LongestStall,
    Lose,
    Moment,
    MostDropped,
    MostLives,
    Pause,
    Scenario,
    Start,
    Target,
    Together,
    When,
    Wish,
)


class ScenarioError(ValueError):
    """A mistake in a scenario file: a sentence with the file's name and the line's number."""


_GROUP = r"(?P<group>g\d+)"
_TIME = r"(?P<time>\d+(?:\.\d+)? ?(?:ms|s))"
_STEP = r"(?P<step>\d+)"
_MOMENTS = {
    "at step N": rf"at step {_STEP}",
    "T later": rf"{_TIME} later",
    "when gN heals": rf"when {_GROUP} (?P<does>heals|reduces)",
    "when all are together": r"when all are together",
}
_ACTIONS = {
    "kill gN": rf"kill {_GROUP}",
    "kill (or start) supervisor of gN": rf"(?P<verb>kill|start) (?P<kind>supervisor) of {_GROUP}",
    "kill (or start) lighthouse": r"(?P<verb>kill|start) (?P<kind>lighthouse)",
    "pause gN for T": rf"pause (?:{_GROUP}|lighthouse) for {_TIME}",
    "cut gN from gM for T": rf"cut {_GROUP} from (?P<other>g\d+|{LIGHTHOUSE}|{EVERYBODY}) for {_TIME}",
    "lose gN for T": rf"lose {_GROUP} for {_TIME}",
    "leave gN": rf"leave {_GROUP}",
    "join gN": rf"join {_GROUP}",
}
_WISHES = {
    "all groups at step N": rf"all groups at step {_STEP}",
    "gapless gN": rf"gapless {_GROUP}",
    "no restart of gN": rf"no restart of {_GROUP}",
    "at most N lives of gN": rf"at most (?P<most>\d+) lives of {_GROUP}",
    "no step dropped": r"no step dropped",
    "at most N steps dropped": r"at most (?P<most>\d+) steps? dropped",
    "longest stall under T": rf"longest stall under {_TIME}",
}
_REMARKS = {"only simulated": "it needs a lease of 3 s"}
_NUMBERS = ("groups", "ranks", "min_replicas", "steps")
_TIMES = ("heartbeat_timeout", "timeout", "lease")


def read(path: Path) -> Scenario:
    return parse(path.read_text(encoding="utf-8"), path.stem)


def parse(text: str, name: str) -> Scenario:
    """Raises `ScenarioError`."""
    return _Parser(name).parse(text)


def seconds_of(text: str) -> float:
    """``300 ms`` or ``2 s``."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


class _Parser:
    def __init__(self, name: str) -> None:
        self._scenario = Scenario(name=name)  # as far as it was read
        self._line = 0  # that is being read
        self._step = 0  # of the latest "at step"
        self._here = set(self._scenario.wanted(0))  # groups that are there or on their way
        self._ever = set(self._here)  # groups that have ever been there
        self._down: set[str] = set()  # what was killed and must be started: "supervisor of g0", "lighthouse"
        self._set: set[str] = set()  # settings that were given

    def parse(self, text: str) -> Scenario:
        for self._line, line in enumerate(text.splitlines(), 1):
            words = " ".join(line.partition("#")[0].split())
            name, _, reason = words.partition(":")
            if name in _REMARKS:
                self._remark(name, reason.strip())
            elif words:
                for sentence in (part.strip() for part in words.split(";")):
                    self._sentence(sentence)
        self._line += 1
        if "lighthouse" in self._down:
            self._wrong("the lighthouse was killed and is never started again; add: 2 s later start lighthouse")
        if not self._scenario.expectations:
            self._wrong("it expects nothing; add a line such as: expect all groups at step 40")
        only = "a lease" if self._scenario.lease is not None else ""
        if any(isinstance(d.moment, When) and d.moment.does == "reduces" for d in self._scenario.story):
            only = "'when gN reduces'"
        if only and not self._scenario.only_simulated:
            self._wrong(f"real processes don't know {only}; add: only simulated: REASON")
        return self._scenario

    def _wrong(self, what: str) -> NoReturn:
        raise ScenarioError(f"{self._scenario.name}, line {self._line}: {what}.")

    def _remark(self, name: str, reason: str) -> None:
        if not reason:
            self._wrong(f"say why, as in: {name}: {_REMARKS[name]}")
        self._scenario = replace(self._scenario, **{name.replace(" ", "_"): reason})

    def _sentence(self, sentence: str) -> None:
        if not sentence:
            self._wrong("there is nothing beside a semicolon")
        first = sentence.split()[0]
        if first == "expect":
            self._expect(sentence.removeprefix("expect").strip())
        elif first in (*_NUMBERS, *_TIMES):
            self._settings(sentence)
        else:
            self._deed(sentence)

    # --- settings ------------------------------------------------------------------------------------------------------

    def _settings(self, sentence: str) -> None:
        if self._scenario.story:
            self._wrong("settings come before the first thing that happens")
        for part in (p.strip() for p in sentence.split(",")):
            name, _, value = part.partition(" ")
            if name in self._set:
                self._wrong(f"{name} is set a second time")
            self._set.add(name)
            if name in _NUMBERS and re.fullmatch(r"[1-9]\d*", value):
                self._scenario = replace(self._scenario, **{name: int(value)})
            elif name in _TIMES and re.fullmatch(_TIME, value):
                self._scenario = replace(self._scenario, **{name: seconds_of(value)})
            elif name in _NUMBERS:
                self._wrong(f"{name} {value!r} is not a whole number above 0")
            elif name in _TIMES:
                self._wrong(f"{name} {value!r} is not a time such as 300 ms or 2 s")
            else:
                self._wrong(f"{name!r} is not a setting; there are {', '.join((*_NUMBERS, *_TIMES))}")
        if self._scenario.min_replicas > self._scenario.groups:
            self._wrong(f"min_replicas {self._scenario.min_replicas} is more than there are groups")
        self._here = set(self._scenario.wanted(0))
        self._ever = set(self._here)

    # --- the story -----------------------------------------------------------------------------------------------------

    def _deed(self, sentence: str) -> None:
        moment, rest = self._moment(sentence)
        found = next((m for pattern in _ACTIONS.values() if (m := re.fullmatch(pattern, rest))), None)
        if found is None:
            self._wrong(f"{rest!r} is not understood; it could be {_list(_MOMENTS)}, and then {_list(_ACTIONS)}")
        if self._scenario.expectations:
            self._wrong("what is expected comes after all that happens")
        action = self._action(rest.split()[0], found.groupdict())
        deed = Deed(self._line, sentence, moment, action)
        self._scenario = replace(self._scenario, story=(*self._scenario.story, deed))

    def _moment(self, sentence: str) -> tuple[Moment, str]:
        """When, and the rest of the sentence."""
        first = not self._scenario.story
        found = next((m for pattern in _MOMENTS.values() if (m := re.match(pattern + r"\b,? ?", sentence))), None)
        if found is None:
            if first and any(re.fullmatch(p, sentence) for p in _ACTIONS.values()):
                self._wrong("say when it happens, as in: at step 12 kill g1")
            return Later(0.0), sentence
        rest, part = sentence[found.end() :], found.groupdict()
        if "later" in found[0] and first:
            self._wrong("nothing has happened before that it could be later than")
        if part.get("step"):
            return self._at_step(int(part["step"])), rest
        if part.get("time"):
            return Later(seconds_of(part["time"])), rest
        if part.get("does"):
            return When(self._there(part["group"]), part["does"]), rest
        return Together(), rest

    def _at_step(self, step: int) -> AtStep:
        if step < self._step:
            self._wrong(f"step {step} is before step {self._step}, where the story is already")
        if not 1 <= step <= self._scenario.steps:
            self._wrong(f"step {step} is not among the {self._scenario.steps} steps of the run")
        self._step = step
        return AtStep(step)

    def _action(self, verb: str, part: dict[str, str | None]) -> Action:
        group, time = part.get("group") or "", part.get("time")
        seconds = seconds_of(time) if time else 0.0
        if time and seconds <= 0:
            self._wrong(f"{verb} needs a time above 0")
        if part.get("kind") or (verb == "pause" and not group):
            return self._service(verb, Target(part.get("kind") or LIGHTHOUSE, group), seconds)
        if verb == "join":
            return self._join(group)
        self._there(group)
        if verb == "kill":
            return Kill(Target("trainer", group))
        if verb == "pause":
            return Pause(Target("trainer", group), seconds)
        if verb == "lose":
            return Lose(group, seconds)
        if verb == "leave":
            self._here.discard(group)
            return Leave(group)
        other = part["other"] or ""
        if other == group:
            self._wrong(f"{group} can't be cut from itself")
        return Cut(group, other if other in (LIGHTHOUSE, EVERYBODY) else self._there(other), seconds)

    def _service(self, verb: str, target: Target, seconds: float) -> Action:
        """Of a supervisor or the lighthouse."""
        name = str(target)
        if verb == "start":
            if name not in self._down:
                self._wrong(f"the {name} was not killed before")
            self._down.discard(name)
            self._here |= {target.group} - {""}
            return Start(target)
        if target.group:
            self._there(target.group)
        if name in self._down:
            self._wrong(f"the {name} is down already")
        if verb == "pause":
            return Pause(target, seconds)
        self._down.add(name)
        self._here.discard(target.group)
        return Kill(target)

    def _join(self, group: str) -> Join:
        if group in self._ever:
            self._wrong(f"{group} is not new; a newcomer has a name of its own")
        self._here.add(group)
        self._ever.add(group)
        return Join(group)

    def _there(self, group: str) -> str:
        if group not in self._here:
            self._wrong(f"there is no {group} at this point; there are {', '.join(sorted(self._here))}")
        return group

    # --- expectations --------------------------------------------------------------------------------------------------

    def _expect(self, sentence: str) -> None:
        found = next((m for pattern in _WISHES.values() if (m := re.fullmatch(pattern, sentence))), None)
        if found is None:
            self._wrong(f"expecting {sentence!r} is not understood; it could be {_list(_WISHES)}")
        part = found.groupdict()
        group = part.get("group") or ""
        if group and group not in self._ever:
            self._wrong(f"there is never a group {group}")
        wish: Wish
        if part.get("step"):
            if int(part["step"]) > self._scenario.steps:
                self._wrong(f"the run ends at step {self._scenario.steps}, before step {part['step']}")
            wish = AllAt(int(part["step"]))
        elif group:
            wish = Gapless(group) if sentence.startswith("gapless") else MostLives(group, int(part.get("most") or 1))
        elif part.get("time"):
            wish = LongestStall(seconds_of(part["time"]))
        else:
            wish = MostDropped(int(part.get("most") or 0))
        expectation = Expectation(self._line, sentence, wish)
        self._scenario = replace(self._scenario, expectations=(*self._scenario.expectations, expectation))


def _list(patterns: dict[str, str]) -> str:
    return ", ".join(f"'{words}'" for words in patterns)

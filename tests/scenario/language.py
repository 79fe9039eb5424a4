"""Parser of scenario files, which describe the events of a job in words, for simulated and for real processes.

::

    groups 3, heartbeat_timeout 1 s, steps 40
    at step 12 kill g1
    300 ms later pause g2 for 2 s; kill g0
    expect all groups at step 40

`parse` returns frozen values (module `values`). It reports a mistake with a sentence that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.scenario.values import (
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
    MostAttempts,
    MostDropped,
    Pause,
    Scenario,
    Start,
    Target,
    Together,
    When,
)


class ScenarioError(ValueError):
    """A mistake in a scenario file: a sentence with the file's name and the line's number."""


Rule = tuple[
    str, Callable[[dict[str, str]], Any]
]  # a regular expression, and a function that makes a value of its groups
_GROUP = r"(?P<group>g\d+)"
_TIME = r"(?P<time>\d+(?:\.\d+)? ?(?:ms|s))"
_STEP = r"(?P<step>\d+)"
_SETTINGS: Sequence[Rule] = (
    (r"(?P<name>groups|steps) (?P<number>[1-9]\d*)", lambda p: (p["name"], int(p["number"]))),
    (rf"(?P<name>heartbeat_timeout|timeout|lease) {_TIME}", lambda p: (p["name"], _seconds(p))),
)
_MOMENTS: Sequence[Rule] = (
    (rf"at step {_STEP}", lambda p: AtStep(int(p["step"]))),
    (rf"{_TIME} later", lambda p: Later(_seconds(p))),
    (rf"when {_GROUP} (?P<does>heals|reduces)", lambda p: When(p["group"], p["does"])),
    (r"when all are together", lambda p: Together()),
)
_ACTIONS: Sequence[Rule] = (
    (rf"kill {_GROUP}", lambda p: Kill(Target("trainer", p["group"]))),
    (rf"kill supervisor of {_GROUP}", lambda p: Kill(Target("supervisor", p["group"]))),
    (rf"start supervisor of {_GROUP}", lambda p: Start(Target("supervisor", p["group"]))),
    (r"kill lighthouse", lambda p: Kill(Target("lighthouse"))),
    (r"start lighthouse", lambda p: Start(Target("lighthouse"))),
    (rf"pause {_GROUP} for {_TIME}", lambda p: Pause(Target("trainer", p["group"]), _seconds(p))),
    (rf"pause lighthouse for {_TIME}", lambda p: Pause(Target("lighthouse"), _seconds(p))),
    (
        rf"cut {_GROUP} from (?P<other>g\d+|lighthouse|everybody) for {_TIME}",
        lambda p: Cut(p["group"], p["other"], _seconds(p)),
    ),
    (rf"lose {_GROUP} for {_TIME}", lambda p: Lose(p["group"], _seconds(p))),
    (rf"leave {_GROUP}", lambda p: Leave(p["group"])),
    (rf"join {_GROUP}", lambda p: Join(p["group"])),
)
_WISHES: Sequence[Rule] = (
    (rf"all groups at step {_STEP}", lambda p: AllAt(int(p["step"]))),
    (rf"gapless {_GROUP}", lambda p: Gapless(p["group"])),
    (rf"no restart of {_GROUP}", lambda p: MostAttempts(p["group"], 1)),
    (rf"at most (?P<most>\d+) attempts of {_GROUP}", lambda p: MostAttempts(p["group"], int(p["most"]))),
    (r"no step dropped", lambda p: MostDropped(0)),
    (r"at most (?P<most>\d+) steps? dropped", lambda p: MostDropped(int(p["most"]))),
    (rf"longest stall under {_TIME}", lambda p: LongestStall(_seconds(p))),
)


def read(path: Path) -> Scenario:
    return parse(path.read_text(encoding="utf-8"), path.stem)


def parse(text: str, name: str) -> Scenario:
    """Return the scenario that a file's text describes. Raise `ScenarioError`."""
    settings: dict[str, Any] = {}
    story: list[Deed] = []
    expectations: list[Expectation] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = " ".join(line.partition("#")[0].split())
        if words.startswith("only simulated: "):
            settings["only_simulated"] = words.partition(": ")[2]
            continue
        for sentence in filter(None, (part.strip() for part in words.split(";"))):
            try:
                if sentence.startswith("expect "):
                    wish = sentence.removeprefix("expect ")
                    expectations.append(Expectation(number, wish, _one(_WISHES, wish)))
                elif sentence.split()[0] in ("groups", "steps", "heartbeat_timeout", "timeout", "lease"):
                    settings |= dict(_one(_SETTINGS, part.strip()) for part in sentence.split(","))
                else:
                    story.append(_deed(number, sentence))
            except ScenarioError as e:
                raise ScenarioError(f"{name}, line {number}: {e}.") from None
    if not expectations:
        raise ScenarioError(f"{name} expects nothing; add a line such as: expect all groups at step 40.")
    scenario = Scenario(name=name, story=tuple(story), expectations=tuple(expectations), **settings)
    for done, deed in enumerate(story):
        strange = deed.needs - {*scenario.wanted(done)}
        if strange:
            raise ScenarioError(f"{name}, line {deed.line}: there is no {', '.join(sorted(strange))} at this point.")
    return scenario


def _deed(line: int, sentence: str) -> Deed:
    for pattern, make in _MOMENTS:
        if found := re.match(pattern + r"\b,? ?", sentence):
            return Deed(line, sentence, make(found.groupdict()), _one(_ACTIONS, sentence[found.end() :]))
    return Deed(line, sentence, Later(0.0), _one(_ACTIONS, sentence))


def _one(rules: Sequence[Rule], words: str) -> Any:
    """Return the value that the matching rule makes of these words. Raise `ScenarioError` if there is none."""
    for pattern, make in rules:
        if found := re.fullmatch(pattern, words):
            return make(found.groupdict())
    raise ScenarioError(f"{words!r} is not understood")


def _seconds(part: dict[str, str]) -> float:
    """Return the seconds of ``300 ms`` or ``2 s``."""
    text = part["time"]
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])

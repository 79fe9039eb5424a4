"""Stories: what happens to a lighthouse line by line, and exactly what it answers.

``golden/*.txt``: a line at the margin is done, the indented lines below it are what comes out, ``#`` is for the reader.
After a wanted change run with ``--rewrite`` and read the difference before committing it.

Lines: ``lighthouse KEY=VALUE...``, ``hello NAME [attempt= boot= quorum=none|latest lease_left=]``,
``join NAME [step=N|committed reason= model= suspects=]``, ``leave NAME [step=]``,
``heard|close|refused|accepted|exited|beat NAME``, ``unary NAME call= [step=]``, ``gone call=``, ``announce GROUP``,
``restart SECONDS`` (amnesia after so long), ``wait SECONDS [alive=NAME,...]``, ``undecided``.
Quorum ids are shown as ``+N`` from the lighthouse's first.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.unit.core.scene import UNIX, Scene
from torchft_x.core.fingerprint import Fingerprint, describe
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import (
    Fence,
    Issue,
    LighthouseEffect,
    Probe,
    Probed,
    Refuse,
    RevokeQuorum,
    SendWaits,
)
from torchft_x.core.types import AttemptId, JoinReason, State

STORIES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


class Player:
    """Runs one story."""

    def __init__(self) -> None:
        self.config: dict[str, float | bool] = {}
        self.scene = Scene()
        self.base = int(UNIX * 1000) << 10  # the first id of the present lighthouse

    def play(self, line: str) -> list[str]:
        words = line.split()
        names = [w for w in words[1:] if "=" not in w]
        options = dict(w.split("=", 1) for w in words[1:] if "=" in w)
        if words[0] == "undecided":
            return [self._ids(self.scene.lighthouse.undecided) or "-"]
        shown = [self.show(e) for e in self.do(words[0], names, options)]
        return [text for i, text in enumerate(shown) if not (text.startswith("waits") and text in shown[:i])]

    def do(self, action: str, names: list[str], options: dict[str, str]) -> list[LighthouseEffect]:
        s = self.scene
        match action:
            case "lighthouse":
                self.config = {k: (v == "yes" if v in ("yes", "no") else float(v)) for k, v in options.items()}
                self.scene = Scene(**self.config)
            case "restart":
                now = s.now + float(names[0])
                self.scene = Scene(now=now, unix=UNIX + now, **self.config)
                self.scene.quorums = s.quorums
                self.base = int((UNIX + now) * 1000) << 10
            case "hello":
                return self.hello(names[0], options)
            case "join":
                suspects = tuple(options["suspects"].split(",")) if "suspects" in options else ()
                reason = JoinReason(options.get("reason", "boundary"))
                model = Fingerprint((describe("model", options["model"]),)) if "model" in options else None
                return s.join(names[0], self._state(options), reason, suspects, traits=model)
            case "leave":
                return s.leave(names[0], self._state(options))
            case "heard" | "close" | "refused" | "exited":
                return getattr(s, action)(names[0])  # type: ignore[no-any-return]
            case "accepted":
                return s.feed(Probed(names[0], False))
            case "beat":
                s.beat(*names)
            case "unary":
                return s.unary(names[0], int(options["call"]), int(options.get("step", "0")))
            case "gone":
                return s.unary_gone(int(options["call"]))
            case "announce":
                s.announce(*names)
            case "wait":
                alive = tuple(options["alive"].split(",")) if "alive" in options else ()
                return s.wait(float(names[0]), alive=alive)
            case _:
                raise ValueError(f"unknown line {action!r}")
        return []

    def hello(self, name: str, options: dict[str, str]) -> list[LighthouseEffect]:
        fields: dict[str, object] = {"attempt_id": AttemptId(int(options.get("attempt", "0")), 0.0, f"token-{name}")}
        if "boot" in options:
            fields["boot_id"] = options["boot"]
        if options.get("quorum") == "none":
            fields["quorum"] = None
        if "lease_left" in options:
            fields["lease_left"] = float(options["lease_left"])
        return self.scene.hello(name, **fields)

    def _state(self, options: dict[str, str]) -> State:
        step = options.get("step", "0")
        return self.scene.committed() if step == "committed" else State(int(step), 0)

    # --- what comes out --------------------------------------------------------------------------------------------

    def show(self, effect: LighthouseEffect) -> str:
        match effect:
            case Issue(quorum, sessions, calls):
                members = ", ".join(f"{m.replica_id} at {m.state}" for m in quorum.members)
                to = [f"sessions {_list(sessions)}"] * bool(sessions) + [f"calls {_list(calls)}"] * bool(calls)
                head = f"issue q{quorum.number} {quorum.id} config {quorum.config_id} through step"
                text = f"{head} {quorum.granted_through} to {' and '.join(to)}: {members}"
            case RevokeQuorum(quorum_id, lost, reason, sessions=sessions):
                text = f"over {quorum_id} to sessions {_list(sessions)}, lost {_list(lost) or 'nobody'}: {reason}"
            case SendWaits(reason, sessions=sessions):
                text = f"waits, to sessions {_list(sessions)}: {reason}"
            case Fence(by, session):
                text = f"fence session {session} by {by}"
            case Refuse(sentence, session, call):
                text = f"refuse {f'session {session}' if session is not None else f'call {call}'}: {sentence}"
            case Probe(replica_id, address):
                text = f"probe {replica_id} at {address}"
            case Note(event, words):
                text = f"note {event}: {words}"
        return self._ids(text)

    def _ids(self, text: str) -> str:
        return re.sub(r"\b\d{9,}\b", lambda m: f"{int(m[0]) - self.base:+d}", text)


def _list(values: tuple[object, ...]) -> str:
    return ",".join(str(v) for v in values)


def told(story: str) -> str:
    """The story with what really comes out."""
    player = Player()
    lines: list[str] = []
    for line in story.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"  {out}" for out in player.play(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda p: p.stem)
def test_story(path: Path, golden: Golden) -> None:
    golden.check(path, told(path.read_text()))


def test_there_are_stories() -> None:
    assert len(STORIES) >= 8

"""A path as a story: one line per action, and below it what came of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.sim.untimed.model import Action, Draft, Global, Model
from tests.sim.untimed.values import told
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import Member, Quorum, State

_ID = re.compile(r"\b(1\d{3,})\b")  # ids count from 1024 on


class Teller(Draft):
    """A draft that writes down what it does."""

    def __init__(self, model: Model, state: Global, names: dict[int, str]) -> None:
        super().__init__(model, state)
        self.lines: list[str] = []
        self.names = names  # quorum id -> q1, q2, ...

    def light(self, place: int, event: Any, meaning: Any = None) -> None:
        before = len(self.lines)
        super().light(place, event, meaning)
        if len(self.lines) == before and isinstance(meaning, (lm.Join, lm.Closed)):
            self.lines.append(f"   {self._light(place)} waits: {self._undecided(place)}")

    def _undecided(self, place: int) -> str:
        light = self.model.tables.lights._actors[self.lights[place]]
        return light.machine.undecided or "nobody asks"

    def _light(self, place: int) -> str:
        return "the lighthouse"

    def _push(self, session: int, message: Any) -> None:
        super()._push(session, message)
        if not isinstance(message, gm.QuorumArrived):
            c = self.channels.get(session)
            who = c.name if c is not None and c.down_open else f"session {session} (gone)"
            self.lines.append(f"   to {who}: {self.say(message)}")

    def _hang_up(self, session: int) -> None:
        super()._hang_up(session)
        self.lines.append(f"   closes session {session}")

    def _issued(self, quorum: Quorum, fresh: bool, follows: int) -> None:
        self.names.setdefault(quorum.id, f"q{len(self.names) + 1}")
        super()._issued(quorum, fresh, follows)
        self.lines.append(f"   issues {self.say(quorum)}{' (a new lineage)' if fresh else ''}")

    def _out_up(self, name: str, message: Any) -> None:
        super()._out_up(name, message)
        self.lines.append(f"   {name} sends {self.say(message)}")

    def _out_commit(self, name: str, rank: int, in_hand: int, state: State, *args: Any) -> None:
        super()._out_commit(name, rank, in_hand, state, *args)
        self.lines.append(f"   {name}/{rank} COMMITS {self.say(state)}: {told(args[1])}")

    def _out_held(self, name: str, rank: int, state: State, value: Any) -> None:
        super()._out_held(name, rank, state, value)
        self.lines.append(f"   {name}/{rank} holds {self.say(state)}: {told(value)}")

    def _out_left(self, name: str, rank: int) -> None:
        super()._out_left(name, rank)
        self.lines.append(f"   {name}/{rank} aborts its collectives")

    def _out_post(self, name: str, rank: int, row: Any) -> None:
        super()._out_post(name, rank, row)
        what = {"row": "votes between the groups", "zeros": "reduces zeros", "gradient": "reduces"}[row[0]]
        step = f" step {row[2] + 1}" if row[0] == "gradient" else ""
        self.lines.append(f"   {name}/{rank} {what}{step}")

    def _out_end(self, name: str, why: str) -> None:
        super()._out_end(name, why)
        self.lines.append(f"   {name} ends: {why}")

    def _out_died(self, name: str, why: str) -> None:
        super()._out_died(name, why)
        self.lines.append(f"   {name} dies: {why}")

    # --- values ------------------------------------------------------------------------------------------------------

    def say(self, thing: Any) -> str:
        text = _say(thing)
        return _ID.sub(lambda found: self.names.get(int(found[1]), found[1]), text)


def _say(thing: Any) -> str:
    match thing:
        case str():
            return thing
        case State(step, committed_in):
            return f"({step}, {committed_in})" if committed_in else f"({step}, -)"
        case Member():
            extra = f" prepared {_say(thing.prepared.state)}" if thing.prepared else ""
            extra += f" carried {', '.join(map(str, thing.carried))}" if thing.carried else ""
            return f"{thing.replica_id} {_say(thing.state)}{' torn' if thing.torn else ''}{extra}"
        case Quorum():
            members = "; ".join(_say(x) for x in thing.members)
            carriers = ", ".join(c.replica_id for c in thing.carriers)
            return f"{thing.id} {{{members}}}: top {_say(thing.top)}, carried by {carriers or 'nobody'}"
        case lm.Hello():
            held = f", in {thing.quorum.id}{'' if thing.lease_left else ' without lease'}" if thing.quorum else ""
            return f"hello, at {_say(thing.state)}{held}"
        case lm.Join(_, member, reason):
            return f"join ({reason.value}): {_say(member)}"
        case lm.Leave(_, state):
            return f"leave, at {_say(state)}"
        case lm.Progress(_, quorum_id, step):
            return f"progress: step {step} of {quorum_id}"
        case gm.QuorumArrived(quorum):
            return f"quorum {quorum.id}"
        case gm.GrantArrived(quorum_id, granted):
            return f"grant in {quorum_id} through step {granted}"
        case gm.QuorumRevoked(quorum_id, lost):
            return f"{quorum_id} is over{', lost ' + ', '.join(lost) if lost else ''}"
        case gm.FencedArrived(by):
            return f"fenced by {by}"
        case gm.RefusedArrived(sentence):
            return f"refused: {sentence}"
    return str(thing)


def story(model: Model, actions: Sequence[Action]) -> str:
    """The whole path from the start."""
    names: dict[int, str] = {}
    state = model.initial()
    lines: list[str] = []
    for nth, action in enumerate(actions, 1):
        teller = Teller(model, state, names)
        title = _title(teller, state, action)
        teller.do(action)
        fault = "FAULT " if action[0] in model.rules.kinds else ""
        lines += [f"{nth:3d}. {fault}{title}", *teller.lines, *(f"   !! {i}: {t}" for i, t in teller.wrong)]
        state = teller.done()
    text = "\n".join(lines)
    return _ID.sub(lambda found: names.get(int(found[1]), found[1]), text)


def _title(teller: Teller, state: Global, action: Action) -> str:
    what, *args = action
    if what in ("up", "down"):
        c = next(c for c in state.channels if c.session == args[0])
        queue = c.up if what == "up" else c.down
        message = teller.say(teller.model.tables.messages.values[queue[0]])
        where = teller._light(c.place)
        return f"{where} takes from {c.name}: {message}" if what == "up" else f"{c.name} takes: {message}"
    if what == "take":
        return f"{args[0]}/{args[1]}: its collective ends {'well' if args[2] else 'with an error'}"
    if what in ("lease", "pass_time"):
        return f"a long time passes; leases end of {', '.join(args[0]) or 'nobody'}"
    return _TITLES.get(what, what + " {0}").format(*args)


_TITLES = {
    "ask": "{0}/{1} asks for a quorum",
    "connect": "{0} connects to lighthouse {1}",
    "heal": "{0}/{1} has fetched the state",
    "unhealed": "{0}/{1}: its fetch fails, torn: {2}",
    "fetch": "{0}/{1}: its fetch fails, torn: {2}",
    "report": "the supervisor's word that {0} has ended reaches lighthouse {1}",
    "silent": "lighthouse {1} has not heard {0} for too long",
    "suspect": "lighthouse {1} has not heard {0} for too long, though it lives",
    "crash": "{0} is killed; what it sent arrives: {1}",
    "crash_reported": "{0} is killed, its supervisor saw it; what it sent arrives: {1}",
    "cut": "session {0} breaks; what is under way arrives: up {1}, down {2}",
    "lighthouse": "lighthouse {0} dies and starts again without a memory; what it sent arrives: {1}",
    "twin": "another life of group {0} begins",
    "ping": "a ping on session {0}",
    "leave": "{0} leaves",
    "finish": "{0} leaves at the end of the training; its process runs",
    "exit": "the process of {0} ends with {1}",
    "error": "{0}/{1}: its collective fails",
    "call": "{0}/{1}: its call for a quorum breaks",
}

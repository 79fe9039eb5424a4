"""One life of a lighthouse: the product's machine, and what its shell sends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.sim.untimed.freeze import age_lighthouse, register, silence
from tests.sim.untimed.values import Rules
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.messages.common import Note, Tick

Out = tuple[Any, ...]
"""("push", session, message), ("hang_up", session), ("issue", quorum, new lineage, id of the one before), ("wrong", invariant, text)."""


class Light:
    """See the module. `life` counts all of them ever started."""

    def __init__(self, rules: Rules, life: int) -> None:
        config = LighthouseConfig(
            join_timeout=0.0, tick=1e9, hello_grace=0.0, new_job=life == 0, restarted=life > 0,
            grant_steps=rules.grant_steps, boot_id="lighthouse's", give_up_after=0.0,
        )  # fmt: skip
        self.machine = Lighthouse(config, now=0.0, unix=0.001 * (life + 1))

    def handle(self, event: Any) -> list[Out]:
        """Events are those of core, or ("age", renewed), or ("silent", replica ids)."""
        tenure = self.machine._tenure
        follows = tenure.quorum_id
        granted, asking = (tenure.quorum_id, tenure.granted_through), sorted(tenure.asking)
        effects = self._pass_time(*event) if isinstance(event, tuple) else self.machine.handle(event, 0.0)
        out: list[Out] = []
        if isinstance(event, lm.Hello) and not any(_ends(e, event.session) for e in effects):
            out.append(("push", event.session, "welcome"))
        more = granted[0] == tenure.quorum_id and tenure.granted_through > granted[1]
        if more and asking and any(isinstance(e, lm.Extend) for e in effects):
            out.append(("wrong", "L2", f"more is granted while {', '.join(asking)} wait for the next quorum"))
        fresh = not follows or any(isinstance(e, Note) and e.event == "new_lineage" for e in effects)
        for effect in effects:
            out += _sent(effect, fresh, follows)
        return out

    def _pass_time(self, what: str, names: Collection[str]) -> list[Any]:
        if what == "age":
            age_lighthouse(self.machine, frozenset(names))
            gone = [r.replica_id for r in self.machine._roll if r.session is None]
            silence(self.machine, gone)
        else:
            silence(self.machine, names)
        return self.machine.handle(Tick(), 0.0)


register(Light)


def _ends(effect: Any, session: int) -> bool:
    return isinstance(effect, (lm.Fence, lm.Refuse)) and effect.session == session


def _sent(effect: Any, fresh: bool, follows: int) -> list[Out]:
    match effect:
        case lm.Issue(quorum, sessions):
            return [("issue", quorum, fresh, follows), *(("push", s, gm.QuorumArrived(quorum)) for s in sessions)]
        case lm.Extend(session, quorum_id, granted, lease, number):
            return [("push", session, gm.GrantArrived(quorum_id, granted, lease, number))]
        case lm.RevokeQuorum(sessions, quorum_id, lost, _):
            return [("push", s, gm.QuorumRevoked(quorum_id, lost, "over")) for s in sessions]
        case lm.Fence(session, by):
            return [("push", session, gm.FencedArrived(by))]
        case lm.CloseSession(session):
            return [("hang_up", session)]
        case lm.Refuse(sentence, session) if session is not None:
            return [("push", session, gm.RefusedArrived(sentence))]
    return []

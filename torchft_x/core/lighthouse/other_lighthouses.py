"""What a lighthouse hears of the others that serve the same groups: from its members, and from what they left behind."""

from __future__ import annotations

from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord, MemberTable
from torchft_x.core.messages.lighthouse import Hello, LastWord, LighthouseEffect, Refuse
from torchft_x.core.quorum.acceptors import QuorumIntersection
from torchft_x.core.restart.standby import StandbyRecovery
from torchft_x.core.types import Quorum, State


class OtherLighthouses:
    """Part of a lighthouse that is one of several; shares its roll and tenure."""

    def __init__(
        self,
        config: LighthouseConfig,
        coalition: QuorumIntersection,
        roll: MemberTable,
        tenure: QuorumState,
        alarm: LossHandler,
    ) -> None:
        self._coalition = coalition  # who counts
        self._roll = roll  # every member heard of
        self._tenure = tenure  # the present quorum, and those that are open
        self._alarm = alarm  # tells members
        self.gathering = StandbyRecovery(config, coalition)  # before the first quorum

    def greet(self, hello: Hello, now: float) -> list[LighthouseEffect]:
        """A member has come, perhaps from another lighthouse."""
        self._coalition.belongs(hello.replica_id, hello.chain)
        return [e for q in (hello.quorum, hello.before) if q is not None for e in self._learn(q, now)]

    def part(self, record: MemberRecord, state: State) -> None:
        """It leaves the job at this state, and receives nothing any more. What it was sent last may have been under way:
        if it has received that, its supervisor says so."""
        self._coalition.end(record.replica_id, max(record.received_id, state.committed_in))
        self._tenure.recheck(self._roll)

    def take_last_word(self, word: LastWord, now: float) -> list[LighthouseEffect]:
        """A member has ended, wherever it was, and that is the newest quorum it had received."""
        self._coalition.end(word.replica_id, word.quorum.id if word.quorum is not None else 0, word.chain)
        effects = self._learn(word.quorum, now) if word.quorum is not None else []
        self._tenure.recheck(self._roll)
        record, reason = self._roll.get(word.replica_id), "its supervisor says that it has ended"
        if record is not None:
            self._roll.close(record)
            effects += self._alarm.lose(record, reason, proof=reason)
        return effects

    def refuse_client(self, replica_id: str, call: int) -> list[LighthouseEffect]:
        """torchft's clients have no place here."""
        text = (
            f"{replica_id} can't join: this is one of several lighthouses, which must know of each member what it has "
            "received last, and torchft's clients don't tell. Give them a lighthouse that is the only one."
        )
        return [Refuse(text, call=call)]

    def _learn(self, quorum: Quorum, now: float) -> list[LighthouseEffect]:
        """Another lighthouse may have issued this one: then whoever holds an older one must ask."""
        if self.gathering.is_open:
            self.gathering.learn(quorum)
        return [
            effect
            for record in self._tenure.learn((quorum,), self._roll, now=now)
            for effect in self._alarm.tell(record, f"quorum {self._tenure.quorum_id} has been formed since.")
        ]

"""Record of one member: whether it is waited for, why it is over, and the facts from which others decide these.

Three things are easily confused, which leads to split brains. Each is modelled as what it is:

* *lost*: nobody waits for the member any more. A suspicion is enough, and it may be wrong. It stays lost, for its first
  reason, until it is found (`MemberTable.find`). Of those that are lost, a *late* one did not ask in time, or a link to
  it is broken (R20): a sign of life does not bring it back.
* *over* is a proof (`proof`, `is_over`): the member commits nothing more in the quorum it holds (R9b). Its exit was
  reported, it left, a connect to it was refused on the lighthouse's own host and boot, or its lease has ended. A join
  disproves all but the last, also of a lost member. A new session disproves a refused connect.
* *fenced* is a fact about a group's attempts, which `MemberTable` keeps for ever (R2): a newer one of the group is
  here. The fenced one is lost with its session closed, so it is never found; but its lease still runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.quorum import Candidate
from torchft_x.core.types import AttemptId

LEFT = "it has left"
"""Proof that a member is over: its own leave."""


@dataclass(slots=True, eq=False)
class MemberRecord:
    """What the lighthouse knows of one member. Times are monotonic seconds on the lighthouse's clock.

    Only `MemberTable` writes `session`, `unary`, `join` and `lost`, so that the quorum state's counts follow.
    """

    replica_id: str
    heard: float  # last sign of life
    index: int = 0  # in the order in which records were made
    unary: bool = False  # a client of torchft without a session: no lease, no push, torchft's rules
    attempt_id: AttemptId = AttemptId()
    address: str = ""
    boot_id: str = ""
    runs_on: bool = False  # whether it accepts a grant as the answer to a join
    traits: Fingerprint | None = None  # what it has declared; None: nothing yet
    session: int | None = None  # newest open session
    calls: tuple[int, ...] = ()  # open unary requests
    join: Candidate | None = None  # unanswered join of the present session or calls (R3)
    number: int = 0  # number of that join, for a grant that answers it; 0: only a quorum does
    quorum_id: int = 0  # newest quorum it holds: sent to it, or reported by it
    lease_sent: float | None = None  # when a lease was last sent to it
    lost: str = ""  # why nobody waits for it; '': it is waited for
    late: bool = False  # whether it is lost because it was left out
    suspected: bool = False  # whether it is waited for, and the log says that it is silent, though it runs
    proof: str = ""  # why it provably commits nothing more
    notified: bool = False  # whether it was told to ask again since it was lost
    probed_at: float | None = None  # when the newest probe was sent; None: the member has spoken since
    refused: bool = False  # its address refused a connect since it last spoke; from afar that proves nothing
    pause_until: float = float("-inf")  # it has announced that it may be silent until then
    pause_reason: str = ""  # reason for the pause, in the member's words
    pace: tuple[int, float] | None = None  # a step at which it stood, and when it went on from it; None: unknown
    longest_step: float = 0.0  # seconds of the longest step seen

    def __repr__(self) -> str:
        where = f"session {self.session}" if self.session is not None else ("unary" if self.unary else "no session")
        return f"<{self.replica_id} {where} {'asking ' if self.join else ''}{self.lost}>"

    def receive(self, now: float) -> None:
        """Record a sign of life, which outweighs the answer to any probe sent before."""
        self.heard = now
        self.probed_at = None
        self.refused = self.suspected = False

    def disprove(self) -> None:
        """Record that the member speaks, so that a refused connect proves nothing."""
        self.proof = ""

    def note_step(self, step: int, reported: float, now: float) -> None:
        """Record that the member stands at this step, and how long the last steps took. A pause is not a step.

        `reported`: seconds of a step, as the member says; 0: it reports none.
        """
        self.longest_step = max(self.longest_step, reported)
        if self.pace is not None and step > self.pace[0] and self.pause_until < self.pace[1] and not self.lost:
            self.longest_step = max(self.longest_step, (now - self.pace[1]) / (step - self.pace[0]))
        if self.pace is not None:
            self.pace = (step, now)

    def is_over(self, now: float, *, lease: float, alone: float) -> bool:
        """Return whether the member provably commits nothing more in the quorum that it holds (R9(b)).

        `lease`: seconds from the sending of a lease until it has ended for sure, margin included. `alone`: seconds of
        silence after which a client of torchft is over.
        """
        if self.proof:
            return True
        if self.unary:
            return now - self.heard > alone
        return self.lease_sent is not None and now >= self.lease_sent + lease

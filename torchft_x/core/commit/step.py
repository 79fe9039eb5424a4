"""One rank's way through a step: ask for a quorum, reduce, vote, settle.

::

    IDLE --ask--> ASKING --begin--> RUNNING --vote--> VOTING --settle--> IDLE
                    |                  |
                    +---unanswered--> IDLE   (an `ask` in RUNNING abandons that step)

With the vote between groups a step may end undecided: this rank holds the result, and whether another group has
committed it nobody here knows. Then the next quorum decides (R14): `begin` commits it first, or it was never committed
and may be reduced again.

The shell (train.manager) calls the verbs under its lock and carries out what they return; nothing here waits.
Two ways to be unable to commit are kept apart:

* an *error* is sticky for (quorum, step): the reductions of this step are worth nothing, the rest of them return at
  once, and the next join says ``failed``, which releases the other groups;
* an *objection* is this rank's own trouble (a heal that failed while it contributed zeros): the others may commit,
  so its reductions go on; only its own vote is no.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchft_x.core.types import Computed, JoinReason, Part, Prepared, State
from torchft_x.errors import CollectiveError, StepError


class Phase(Enum):
    IDLE = "idle"  # between steps; collectives may still run in the last quorum
    ASKING = "asking"  # joined and frozen: nothing is reduced or committed until the answer (R4)
    RUNNING = "running"  # a quorum is in hand
    VOTING = "voting"  # the local vote is out


@dataclass(frozen=True, slots=True)
class Terms:
    """What this rank says about itself when it asks for a quorum."""

    state: State
    torn: bool
    commit_failures: int  # in a row
    reason: JoinReason
    suspects: tuple[str, ...]  # replica ids
    unreached: tuple[str, ...] = ()  # replica ids of those that this rank could not connect with


@dataclass(frozen=True, slots=True)
class LocalVote:
    """This rank's vote. `step` is the quorum's top step, equal on all ranks whatever they heal from."""

    step: int
    quorum_id: int
    participants: int  # of that quorum
    ok: bool
    enough_replicas: bool
    errored: Exception | None  # first error of the step, else the objection

    def __str__(self) -> str:
        return f"enough_replicas={self.enough_replicas}, errored={self.errored}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended. `give_up`: too many failed commits in a row; the sentence for the user."""

    step: int  # the step that was tried
    quorum_id: int
    committed: bool
    participants: int
    reason: str  # why it was dropped; empty if committed
    give_up: str = ""
    undecided: bool = False  # not committed yet; the next quorum says
    pause: float = 0.0  # seconds to wait before the next quorum is asked for: this one had too few participants


class Step:
    """The machine. Verbs that don't fit the phase raise `StepError` and change nothing.

    Args:
        min_replica_size: fewest participants a commit needs (I7).
        max_retries: failed commits in a row that are still forgiven; None: no limit.
        max_redo: times the same gradients are reduced again before they are dropped.
    """

    def __init__(self, *, min_replica_size: int, max_retries: int | None = None, max_redo: int = 2) -> None:
        self.phase = Phase.IDLE  # see the module's picture
        self.state = State()  # what this rank holds completely (R19: moves by a heal only when the heal is whole)
        self.batches_committed = 0  # sum of participants over committed steps
        self.commit_failures = 0  # in a row; the lighthouse makes new process groups while it is not 0
        self.torn = False  # a heal was half applied: no complete state, never commits
        self.quorum_id = 0  # quorum in hand (RUNNING, VOTING) or last one (IDLE); 0 before the first and while ASKING
        self.top = State()  # of that quorum
        self.rank: int | None = None  # among its participants; None: contributes zeros
        self.size = 0  # number of its participants
        self.error: Exception | None = None  # first error of (quorum, step); cleared by ask
        self.objection: Exception | None = None  # why this rank can't vote yes though its reductions are good
        self._min_replica_size = min_replica_size
        self._max_retries = max_retries
        self._max_redo = max_redo
        self._redone = 0  # times the gradients in hand were reduced again
        self._too_few = 0  # votes in a row in quorums of too few participants
        self._reason = JoinReason.NEW  # for the next ask, unless an error comes in between
        self._suspects: tuple[str, ...] = ()  # members that errors named since the last quorum
        self._unreached: tuple[str, ...] = ()  # members that did not answer while this rank connected, since then
        self._healed = False  # a heal ended in the quorum in hand
        self._over: tuple[int, Exception] | None = None  # newest quorum known to be over; may be known before `begin`
        self._vote: LocalVote | None = None  # set in VOTING
        self._open: LocalVote | None = None  # an undecided step's

    def __repr__(self) -> str:
        return (
            f"Step({self.phase.value}, {self.state}, quorum={self.quorum_id}, participant {self.rank}/{self.size}, "
            f"torn={self.torn}, error={self.error!r})"
        )

    @property
    def waits_on(self) -> bool:
        """Steps are dropped for want of groups, up to four times in a second, and this try is none of the first, second,
        fourth, eighth and so on, which a person may hear of."""
        return self._too_few & (self._too_few - 1) != 0

    # --- a quorum ---------------------------------------------------------------------------------------------------

    def ask(self) -> Terms:
        """Stand still and ask. A step in hand is abandoned: the others, who may wait for it, are told (``failed``)."""
        if self.phase in (Phase.ASKING, Phase.VOTING):
            raise StepError(f"start_quorum was called while {self._doing()}; wait for that first.")
        failed = self.error is not None or self.phase is Phase.RUNNING
        reason = JoinReason.FAILED if failed and self._reason is not JoinReason.NEW else self._reason
        self.phase, self.quorum_id = Phase.ASKING, 0
        self.rank, self.size = None, 0
        self.error = self.objection = None
        self._reason = reason
        return Terms(self.state, self.torn, self.commit_failures, reason, self._suspects, self._unreached)

    def unanswered(self) -> None:
        """No quorum came. The next ask repeats this one's reason."""
        self._need(Phase.ASKING)
        self.phase = Phase.IDLE

    def begin(
        self, quorum_id: int, top: State, rank: int | None, size: int, commit: Prepared | None = None
    ) -> Outcome | None:
        """The quorum is here. `rank` is the place among its `size` participants, None for who contributes zeros.

        `top`: where the step begins. `commit`: a result this rank holds and commits before anything else; the outcome
        of that step is returned. Also returned is the end of an undecided step that was never committed.
        """
        self._need(Phase.ASKING)
        ended = self._decide_open(commit)
        self.phase, self.quorum_id, self.top = Phase.RUNNING, quorum_id, top
        self.rank, self.size = rank, size
        self._reason, self._healed = JoinReason.BOUNDARY, False
        self._suspects = self._unreached = ()
        if self._over is not None and self._over[0] >= quorum_id:
            self.fail(self._over[1])
        return ended

    def _decide_open(self, commit: Prepared | None) -> Outcome | None:
        vote, self._open = self._open, None
        if vote is None:
            if commit is not None:
                raise StepError(f"{commit.state} is to be committed, but this rank holds no such result; stopping.")
            return None
        if commit is not None and not vote.ok:
            raise StepError(f"{commit.state} is to be committed against this rank's vote ({vote}); stopping.")
        if commit is None:
            why = "it was committed nowhere, as the next quorum shows"
            return Outcome(vote.step, vote.quorum_id, False, vote.participants, why)
        if commit.state != State(vote.step + 1, vote.quorum_id):
            raise StepError(
                f"{commit.state} is to be committed, but what this rank holds is step {vote.step + 1} of quorum "
                f"{vote.quorum_id}; stopping."
            )
        self._commit(vote)
        return Outcome(vote.step, vote.quorum_id, True, vote.participants, "")

    # --- trouble ----------------------------------------------------------------------------------------------------

    def fail(self, error: Exception, quorum_id: int | None = None, suspects: tuple[str, ...] = ()) -> bool:
        """Note an error of the step in hand; only the first is kept. False: it concerns another quorum, or isn't first.

        After `settle` it still counts against the quorum: the next ask says ``failed``, so that nobody goes on with a
        broken process group.
        """
        if quorum_id is not None and quorum_id != self.quorum_id:
            return False
        self._suspects += tuple(s for s in suspects if s not in self._suspects)
        if self.error is not None:
            return False
        self.error = error
        return True

    def not_reached(self, quorum_id: int, names: tuple[str, ...]) -> None:
        """Note members of this quorum with which no connection can be made. The next ask names them."""
        if quorum_id == self.quorum_id:
            self._unreached = names

    def over(self, quorum_id: int, error: Exception) -> bool:
        """That quorum is over (a member is lost). True: it is the one in hand and this is its first error.

        The word may come before the quorum itself has reached this rank: then `begin` finds it.
        """
        if self._over is None or quorum_id > self._over[0]:
            self._over = (quorum_id, error)
        return self.quorum_id == quorum_id and self.fail(error, quorum_id)

    @property
    def may_redo(self) -> bool:
        """Whether the gradients in hand may be reduced once more, should the next quorum want it."""
        return self._redone < self._max_redo

    def redo(self, kept: Computed | None, part: Part, *, all_keep: bool) -> bool:
        """Return whether the local gradients in hand are reduced again in this quorum (R15), and count that.

        Args:
            kept: where and for which part they were computed; None: there are none.
            part: this rank's part in this quorum.
            all_keep: see `misfit`.
        """
        self._need(Phase.RUNNING)
        if kept is None or kept.state != self.top or self.state != self.top or self.torn or not self.may_redo:
            return False
        if misfit(kept.part, part, all_keep=all_keep):
            return False
        if self.top.step == 0:
            return False  # nothing is committed yet, so equal states need not be equal parameters (init_sync)
        self._redone += 1
        return True

    # --- healing ----------------------------------------------------------------------------------------------------

    def healed(self, state: State, batches_committed: int) -> None:
        """The whole state is loaded. It must be the quorum's (R17)."""
        self._need(Phase.RUNNING)
        if state != self.top:
            raise StepError(f"healed to {state}, but quorum {self.quorum_id} stands at {self.top}; ask again.")
        self.state, self.batches_committed = state, batches_committed
        self.torn, self._healed, self._redone = False, True, 0

    def heal_failed(self, error: Exception, *, torn: bool) -> bool:
        """The heal did not work; `torn`: it had begun to overwrite what this rank holds.

        True: the others count on this rank's gradients, so they must be released at once.
        """
        self._need(Phase.RUNNING)
        self.torn = self.torn or torn
        self.objection = error
        return self.rank is not None and self.fail(error)

    # --- commit -----------------------------------------------------------------------------------------------------

    def vote(self) -> LocalVote:
        """Close the step and say what this rank thinks of it (R12)."""
        if self.phase is not Phase.RUNNING:
            raise StepError(f"should_commit was called while {self._doing()}; call start_quorum (zero_grad) first.")
        if self.objection is None and (self.torn or self.state != self.top):
            held = "a half-applied state" if self.torn else f"{self.state}"
            self.objection = StepError(
                f"this rank holds {held} while quorum {self.quorum_id} stands at {self.top}; it has to heal first."
            )
        enough = self.size >= self._min_replica_size
        errored = self.error or self.objection
        self._vote = LocalVote(self.top.step, self.quorum_id, self.size, enough and errored is None, enough, errored)
        self.phase = Phase.VOTING
        return self._vote

    def settle(self, commit: bool, reason: str = "", *, undecided: bool = False) -> Outcome:
        """The group has decided. On commit the state moves on to (step + 1, quorum).

        `undecided`: it could not decide after it had told the other groups that it holds the result.
        """
        self._need(Phase.VOTING)
        vote = self._vote
        assert vote is not None
        if commit and not vote.ok:
            raise StepError(
                f"step {vote.step} was committed in quorum {vote.quorum_id} against this rank's vote ({vote}); stopping."
            )
        self.phase, self._vote = Phase.IDLE, None
        self._too_few = 0 if vote.enough_replicas else self._too_few + 1
        pause = _pause(self._too_few)
        if commit:
            self._commit(vote)
            self._reason = JoinReason.HEALED if self._healed else JoinReason.BOUNDARY
            return Outcome(vote.step, vote.quorum_id, True, vote.participants, "")
        if undecided:
            self._open = vote
            self._reason = JoinReason.FAILED
            why = self._why(vote) or reason
            return Outcome(vote.step, vote.quorum_id, False, vote.participants, why, undecided=True, pause=pause)
        self.commit_failures += 1
        # Good on this side, bad elsewhere in the group: its other ranks' process groups are broken.
        self._reason = JoinReason.FAILED if vote.ok else JoinReason.BOUNDARY
        why = self._why(vote) or reason or "another rank of the group voted no"
        return Outcome(vote.step, vote.quorum_id, False, vote.participants, why, self._give_up(why), pause=pause)

    def drop(self, vote: LocalVote, why: str) -> Outcome:
        """An undecided step was committed nowhere and isn't tried again. The quorum in hand is the next step's."""
        self._need(Phase.RUNNING)
        self.commit_failures += 1
        self._redone = 0
        why = self._why(vote) or why
        return Outcome(vote.step, vote.quorum_id, False, vote.participants, why, self._give_up(why))

    def forsake(self) -> None:
        """The next quorum did not come, and the caller doesn't wait for it any more: a result that another group may
        have committed can't be committed here. Only a heal makes this rank whole again."""
        held, self._open = self._open, None
        self.torn = self.torn or (held is not None and held.ok)

    def _commit(self, vote: LocalVote) -> None:
        self.state = State(vote.step + 1, vote.quorum_id)
        self.batches_committed += vote.participants
        self.commit_failures = self._redone = 0

    def refute(self) -> None:
        """Most groups hold another state under this name, so this rank's is wrong. It votes against the step, and heals."""
        self._need(Phase.VOTING)
        self.torn = True

    def unknown(self) -> None:
        """The group's decision did not arrive. It may have committed without us: nothing can be said but stop."""
        self._need(Phase.VOTING)
        self.phase, self._vote, self.torn = Phase.IDLE, None, True

    def restore(self, state: State, batches_committed: int) -> None:
        """Take over the counters of a complete state that was loaded: a checkpoint of the user's, or the group's own copy in
        memory. Not inside a step."""
        self._need(Phase.IDLE)
        self.state, self.batches_committed, self.torn = state, batches_committed, False

    # --- inside -----------------------------------------------------------------------------------------------------

    def _why(self, vote: LocalVote) -> str:
        if vote.errored is not None:
            return str(vote.errored)
        if not vote.enough_replicas:
            return f"{vote.participants} participants, but min_replica_size is {self._min_replica_size}"
        return ""

    def _give_up(self, why: str) -> str:
        if self._max_retries is None or self.commit_failures <= self._max_retries:
            return ""
        return (
            f"{self.commit_failures} steps in a row did not commit at step {self.state.step} and max_retries is "
            f"{self._max_retries}; the last reason: {why}"
        )

    def _doing(self) -> str:
        return {
            Phase.IDLE: "no step is in hand",
            Phase.ASKING: "a quorum is being asked for",
            Phase.RUNNING: f"step {self.top.step} of quorum {self.quorum_id} is running",
            Phase.VOTING: f"step {self.top.step} of quorum {self.quorum_id} is being voted on",
        }[self.phase]

    def _need(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise StepError(f"this needs the phase {phase.value!r}, but {self._doing()}.")


def misfit(computed: Part, part: Part, *, all_keep: bool) -> str:
    """Return why gradients that were computed for the part `computed` must not count in `part`; empty if they may (I9).

    Scripts choose their data by their number, so no two gradients of one reduction may be computed for the same number.
    Contributors that did not count before compute for the number that they have now. Where there are none, because members
    were only lost, the others keep different numbers, though not always those that they have now.

    `all_keep`: each group of this quorum keeps its gradients. Otherwise one may compute anew, for its new number.
    """
    if part.rank is None or part.rank == computed.rank:
        return ""  # zeros are always right
    if computed.rank is None:
        return f"its gradients were computed without a number, and this group is number {part.rank} now"
    if all_keep and set(part.contributors) <= set(computed.contributors):
        return ""
    return f"its gradients were computed as number {computed.rank}, and this group is number {part.rank} now"


def _pause(too_few: int) -> float:
    """Seconds. The lighthouse may be content with fewer groups than the script: it answers at once, with the same few."""
    return min(0.25, 0.005 * 2 ** min(too_few, 6)) if too_few else 0.0  # 2**1024 is no float any more


def over_error(quorum_id: int, lost: tuple[str, ...], reason: str) -> CollectiveError:
    """The error a rank reports when its quorum is over. `lost`: members that nobody waits for; () where all are here."""
    if not lost:
        return CollectiveError(f"quorum {quorum_id} is over: {reason}")
    who = ", ".join(lost)
    return CollectiveError(f"quorum {quorum_id} is over: lost {who} ({reason}); the next quorum goes on without it.")

"""State machine of one rank's step: ask for a quorum, reduce, vote, conclude.

::

    IDLE --ask--> ASKING --begin--> RUNNING --vote--> VOTING --conclude--> IDLE
                    |                  |
                    +---ask_failed--> IDLE   (an `ask` in RUNNING abandons that step)

With the vote between groups a step may end undecided: this rank holds the result, and does not know whether another group
has committed it. The next quorum then decides (R14): either `begin` commits the result first, or it was committed nowhere
and may be reduced again.

The shell (train.step) calls the methods under the lock of `StepFailures` and carries out the returned actions. No method
waits.
There are two separate reasons for a vote against the commit.

* An *error* is sticky for (quorum, step): this step's reductions are worthless, and the rest of them return at once. The
  next join reports ``failed``, which releases the other groups.
* An *objection* concerns only this rank, such as a failed heal while it contributed zeros. The others may commit, so its
  reductions go on, and only its own vote is no.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from torchft_x.core.commit.values import LocalVote, Outcome, Terms, misfit
from torchft_x.core.data.deal import Deal
from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.ranges import size as size_of
from torchft_x.core.data.state import Position
from torchft_x.core.types import Computed, JoinReason, Part, Prepared, State
from torchft_x.errors import StepError


class StepPhase(Enum):
    IDLE = "idle"  # between steps; collectives may still run in the last quorum
    ASKING = "asking"  # joined and frozen: nothing is reduced or committed until the answer (R4)
    RUNNING = "running"  # a quorum is in hand
    VOTING = "voting"  # the local vote is out


class Step:
    """State machine of a rank's steps. A method called in the wrong phase raises `StepError` and changes nothing.

    Args:
        min_replica_size: least number of participants for a commit (I7).
        max_retries: largest number of failed commits in a row before the training gives up; None for no limit.
        max_redo: number of times that the same gradients are reduced again before they are dropped.
    """

    def __init__(self, *, min_replica_size: int, max_retries: int | None = None, max_redo: int = 2) -> None:
        self.phase = StepPhase.IDLE  # see the module's picture
        self.state = State()  # state that this rank holds completely (R19: a heal changes it only at its end)
        self.batches_committed = 0  # sum of participants over committed steps
        self.data: Position | None = None  # position in the data at `state`; None: the script chooses its data itself
        self.data_options: DataOptions | None = None  # not None exactly if `data` is not; set before the first ask
        self.deal: Deal | None = None  # slots of the step in hand
        self.commit_failures = 0  # failed commits in a row; if not 0, the lighthouse has new process groups made
        self.torn = False  # whether a heal was half applied: this rank holds no complete state and never commits
        self.quorum_id = 0  # quorum in hand (RUNNING, VOTING) or last one (IDLE); 0 before the first and while ASKING
        self.top = State()  # top state of that quorum
        self.rank: int | None = None  # rank among its participants; None if this rank contributes zeros
        self.size = 0  # number of its participants
        self.error: Exception | None = None  # first error of (quorum, step); cleared by ask
        self.objection: Exception | None = None  # reason why this rank can't vote yes though its reductions are good
        self._min_replica_size = min_replica_size
        self._max_retries = max_retries
        self._max_redo = max_redo
        self._redone = 0  # number of times that the gradients in hand were reduced again
        self._too_few = 0  # votes in a row in quorums of too few participants
        self._reason = JoinReason.NEW  # reason of the next ask, unless an error comes first
        self._suspects: tuple[str, ...] = ()  # members that errors named since the last quorum
        self._unreached: tuple[str, ...] = ()  # members that did not answer this rank's connects since the last quorum
        self._healed = False  # whether a heal ended in the quorum in hand
        self._over: tuple[int, Exception] | None = None  # newest quorum known to be over, possibly before its `begin`
        self._vote: LocalVote | None = None  # set in VOTING
        self._open: LocalVote | None = None  # vote of an undecided step

    def __repr__(self) -> str:
        return (
            f"Step({self.phase.value}, {self.state}, quorum={self.quorum_id}, participant {self.rank}/{self.size}, "
            f"torn={self.torn}, error={self.error!r})"
        )

    @property
    def skips_log(self) -> bool:
        """Whether this dropped step, for too few groups, need not be logged: only attempts 1, 2, 4, 8 ... are.

        Up to four steps are dropped per second."""
        return self._too_few & (self._too_few - 1) != 0

    # --- a quorum ---------------------------------------------------------------------------------------------------

    def ask(self) -> Terms:
        """Enter ASKING and return the ask's terms. Report a step in hand as ``failed``, which releases the others."""
        if self.phase in (StepPhase.ASKING, StepPhase.VOTING):
            raise StepError(f"start_quorum was called while {self._doing()}; wait for that first.")
        failed = self.error is not None or self.phase is StepPhase.RUNNING
        reason = JoinReason.FAILED if failed and self._reason is not JoinReason.NEW else self._reason
        self.phase, self.quorum_id = StepPhase.ASKING, 0
        self.rank, self.size, self.deal = None, 0, None
        self.error = self.objection = None
        self._reason = reason
        return Terms(self.state, self.torn, self.commit_failures, reason, self._suspects, self._unreached)

    def ask_failed(self) -> None:
        """Return to IDLE after an ask without a quorum. The next ask repeats this one's reason."""
        self._need(StepPhase.ASKING)
        self.phase = StepPhase.IDLE

    def begin(
        self,
        quorum_id: int,
        top: State,
        rank: int | None,
        size: int,
        commit: Prepared | None = None,
        deal: Deal | None = None,
    ) -> Outcome | None:
        """Start a step in a new quorum. `rank` is this rank's number among the `size` participants, None to contribute zeros.

        `top` is the state from which the step starts. `commit` is a result that this rank holds and must commit first. `deal`
        shares out the step's data.
        Return the outcome of an undecided step, committed now or committed nowhere, or None if there was none.
        """
        self._need(StepPhase.ASKING)
        ended = self._decide_open(commit)
        self.phase, self.quorum_id, self.top = StepPhase.RUNNING, quorum_id, top
        self.rank, self.size, self.deal = rank, size, deal
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
        """Record an error of the step in hand. Return False if it concerns another quorum or is not the first one.

        After `conclude` an error still counts against the quorum: the next ask reports ``failed``, so no rank continues
        with a broken process group.
        """
        if quorum_id is not None and quorum_id != self.quorum_id:
            return False
        self._suspects += tuple(s for s in suspects if s not in self._suspects)
        if self.error is not None:
            return False
        self.error = error
        return True

    def not_reached(self, quorum_id: int, names: tuple[str, ...]) -> None:
        """Record members of this quorum to which this rank can't connect. The next ask names them."""
        if quorum_id == self.quorum_id:
            self._unreached = names

    def over(self, quorum_id: int, error: Exception) -> bool:
        """Record that a quorum is over (a member is lost). Return whether it is in hand and this is its first error.

        The report may arrive before the quorum itself has reached this rank. `begin` then applies it.
        """
        if self._over is None or quorum_id > self._over[0]:
            self._over = (quorum_id, error)
        return self.quorum_id == quorum_id and self.fail(error, quorum_id)

    @property
    def may_redo(self) -> bool:
        """Whether the gradients in hand may be reduced once more in the next quorum."""
        return self._redone < self._max_redo

    def may_redo_with(self, kept: Computed | None, part: Part, *, all_keep: bool) -> bool:
        """Return whether the local gradients in hand are reduced again in this quorum (R15), and count that.

        Args:
            kept: state at which and part for which the gradients were computed; None if there are none.
            part: this rank's part in this quorum.
            all_keep: as in `misfit`.
        """
        self._need(StepPhase.RUNNING)
        if kept is None or kept.state != self.top or self.state != self.top or self.torn or not self.may_redo:
            return False
        if misfit(kept, part, self.deal, all_keep=all_keep):
            return False
        if self.top.step == 0:
            return False  # nothing is committed yet, so equal states need not be equal parameters (init_sync)
        self._redone += 1
        return True

    # --- healing ----------------------------------------------------------------------------------------------------

    def healed(self, state: State, batches_committed: int, data: Position | None = None) -> None:
        """Record that the whole state is loaded. Raise `StepError` unless it is the quorum's (R17)."""
        self._need(StepPhase.RUNNING)
        if state != self.top:
            raise StepError(f"healed to {state}, but quorum {self.quorum_id} stands at {self.top}; ask again.")
        self.state, self.batches_committed, self.data = state, batches_committed, data
        self.torn, self._healed, self._redone = False, True, 0

    def heal_failed(self, error: Exception, *, torn: bool) -> bool:
        """Record a failed heal. `torn` is whether it had begun to overwrite this rank's state.

        Return whether the others rely on this rank's gradients and must be released at once.
        """
        self._need(StepPhase.RUNNING)
        self.torn = self.torn or torn
        self.objection = error
        return self.rank is not None and self.fail(error)

    # --- commit -----------------------------------------------------------------------------------------------------

    def vote(self) -> LocalVote:
        """End the step's reductions and return this rank's vote (R12)."""
        if self.phase is not StepPhase.RUNNING:
            raise StepError(f"should_commit was called while {self._doing()}; call start_quorum (zero_grad) first.")
        if self.objection is None and (self.torn or self.state != self.top):
            held = "a half-applied state" if self.torn else f"{self.state}"
            self.objection = StepError(
                f"this rank holds {held} while quorum {self.quorum_id} stands at {self.top}; it has to heal first."
            )
        enough = self.size >= self._min_replica_size
        errored = self.error or self.objection
        self._vote = LocalVote(
            self.top.step, self.quorum_id, self.size, enough and errored is None, enough, errored, self.deal
        )
        self.phase = StepPhase.VOTING
        return self._vote

    def conclude(self, commit: bool, reason: str = "", *, undecided: bool = False) -> Outcome:
        """Apply the group's decision and return the outcome. On commit the state becomes (step + 1, quorum).

        `undecided` is whether the group could not decide after it had reported to the other groups that it holds the result.
        """
        self._need(StepPhase.VOTING)
        vote = self._vote
        assert vote is not None
        if commit and not vote.ok:
            raise StepError(
                f"step {vote.step} was committed in quorum {vote.quorum_id} against this rank's vote ({vote}); stopping."
            )
        self.phase, self._vote = StepPhase.IDLE, None
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
        # A yes here and a no elsewhere in the group means that its other ranks' process groups are broken.
        self._reason = JoinReason.FAILED if vote.ok else JoinReason.BOUNDARY
        why = self._why(vote) or reason or "another rank of the group voted no"
        return Outcome(vote.step, vote.quorum_id, False, vote.participants, why, self._give_up(why), pause=pause)

    def drop(self, vote: LocalVote, why: str) -> Outcome:
        """Return the outcome of an undecided step that was committed nowhere. The quorum in hand is the next step's."""
        self._need(StepPhase.RUNNING)
        self.commit_failures += 1
        self._redone = 0
        why = self._why(vote) or why
        return Outcome(vote.step, vote.quorum_id, False, vote.participants, why, self._give_up(why))

    def abandon_in_doubt(self) -> None:
        """Discard the undecided result, because the caller stops waiting for the next quorum.

        As another group may have committed it, this rank is torn until a heal."""
        held, self._open = self._open, None
        self.torn = self.torn or (held is not None and held.ok)

    def _commit(self, vote: LocalVote) -> None:
        self.state = State(vote.step + 1, vote.quorum_id)
        self.batches_committed += vote.participants
        if self.data is not None and self.data_options is not None and vote.deal is not None:
            moved = self.data.commit(vote.deal.slots, self.data_options)
            self.data = moved if moved.lanes == vote.deal.lanes else replace(moved, lanes=vote.deal.lanes)
        self.commit_failures = self._redone = 0

    def mark_divergent(self) -> None:
        """Record that most groups hold another state under the same name. This rank votes against the step, and heals."""
        self._need(StepPhase.VOTING)
        self.torn = True

    def forbid_redo(self) -> None:
        """Record that the gradients in hand may be wrong, so that the step must be computed again."""
        self._need(StepPhase.VOTING)
        self._redone = self._max_redo

    def decision_lost(self) -> None:
        """Record that the group's decision did not arrive. The group may have committed without this rank, which must stop."""
        self._need(StepPhase.VOTING)
        self.phase, self._vote, self.torn = StepPhase.IDLE, None, True

    def restore(self, state: State, batches_committed: int, data: Position | None = None) -> None:
        """Take over the counters of a loaded complete state: the user's checkpoint, or the group's own copy in memory."""
        self._need(StepPhase.IDLE)
        if data is not None and self.data is not None:
            data.check_same(self.data)
        self.state, self.batches_committed, self.torn = state, batches_committed, False
        self.data = data if data is not None else self.data

    def scale(self) -> float:
        """Return the factor for this rank's gradients before the sum: the result is a mean over participants, or slots."""
        if self.rank is None or self.size == 0:
            return 0.0
        if self.deal is None or self.data is None or self.data_options is None:
            return 1.0 / self.size
        own = self.data.present(self.deal.share(self.rank), self.data_options)
        return 1.0 / size_of(self.data.present(self.deal.slots, self.data_options)) if own else 0.0

    def deal_data(self, data: Position, options: DataOptions) -> None:
        """Share out the slots of every step from now on. Keep a position that was restored before.

        Raises `ConfigError` if that position is one in another data set.
        """
        self._need(StepPhase.IDLE)
        if self.data is not None:
            self.data.check_same(data)
        self.data, self.data_options = self.data or data, options

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
            StepPhase.IDLE: "no step is in hand",
            StepPhase.ASKING: "a quorum is being asked for",
            StepPhase.RUNNING: f"step {self.top.step} of quorum {self.quorum_id} is running",
            StepPhase.VOTING: f"step {self.top.step} of quorum {self.quorum_id} is being voted on",
        }[self.phase]

    def _need(self, phase: StepPhase) -> None:
        if self.phase is not phase:
            raise StepError(f"this needs the phase {phase.value!r}, but {self._doing()}.")


def _pause(too_few: int) -> float:
    """Return the seconds to wait before the next ask, after `too_few` votes in a row with too few participants.

    The lighthouse's minimum may be lower than the script's: it would answer at once, with the same few groups."""
    # The exponent's limit avoids an overflow of float.
    return min(0.25, 0.005 * 2 ** min(too_few, 6)) if too_few else 0.0

"""The agreement inside a group, in which rank 0 collects all votes, decides, and sends the result.

It models `comm.votes.ranks` and `train.step.vote`.

All of it runs in the process of rank 0, except for messages under way. A message takes as long as any on one host. A
stopped process receives it later, and a dead process's connection closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.held import HeldState
from torchft_x.comm.votes.ranks import RankVote
from torchft_x.core.commit.step import StepPhase
from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.messages import group as m
from torchft_x.core.types import State
from torchft_x.errors import CollectiveError

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode


class Hub:
    """Collector of the ranks' votes in one attempt of a group, which decides on each step.

    It also prepares the vote between groups for rank 0.
    """

    def __init__(self, node: GroupNode) -> None:
        self.owes_start = False  # a commit was announced, and the beginning of the next step was not
        self._node = node
        self._mine: RankVote | None = None  # rank 0's vote, while those of the others are outstanding
        self._votes: dict[int, RankVote] = {}  # rank -> its newest vote
        self._crossing: RankVote | None = None  # rank 0's vote on the step on which the groups vote
        self._gone: set[int] = set()  # ranks whose connection has closed

    # --- from the other ranks -----------------------------------------------------------------------------------------

    def on_vote(self, rank: int, vote: RankVote) -> None:
        self._votes[rank] = vote
        self._maybe_speak()

    def on_closed(self, rank: int) -> None:
        self._gone.add(rank)
        self._maybe_speak()

    # --- rank 0 -------------------------------------------------------------------------------------------------------

    def gather(self, rank: int, mine: RankVote) -> None:
        if self._node.ranks[0].step.phase is not StepPhase.VOTING:
            return  # rank 0's deadline has passed meanwhile
        self._mine = mine
        self._maybe_speak()

    def give_up(self) -> None:
        """Decide against the step after the deadline, and notify the ranks that have voted."""
        mine, self._mine = self._mine, None
        if mine is not None:
            self._decide(mine, False, "a rank of the group has not voted in time", undecided=False, but=0)

    def _maybe_speak(self) -> None:
        """Decide, or prepare the vote between groups, once the votes of all ranks are there or a rank has died."""
        mine, node = self._mine, self._node
        if mine is None:
            return
        others = range(1, len(node.ranks))
        if self._gone:
            self._mine = None
            error = CollectiveError(f"the connection to group rank {min(self._gone)} broke")
            node.ranks[0].failures.fail(error, mine.quorum)  # so that the other groups don't wait for this one
            self._decide(mine, False, str(error), undecided=False)
            return
        label = (mine.quorum, mine.step)
        there = [v for r in others if (v := self._votes.get(r)) and (v.quorum, v.step) == label]
        if len(there) < len(others):
            return
        self._mine, self._crossing = None, mine
        votes = (mine, *there)
        answer = self._feed(
            m.GroupVote(
                mine.step, mine.quorum, tuple(r for r, v in enumerate(votes) if not v.ok),
                tuple(v.digest for v in votes), mine.contributors, any(v.broken for v in votes),
            )
        )  # fmt: skip
        if answer.prepared:
            self._prepared(answer.row)
        else:
            self._decide(mine, answer.commit, answer.reason, undecided=False)

    def _prepared(self, vote: CrossVote | None) -> None:
        node = self._node
        node.world.note(node.replica_id, "is prepared" if vote is not None else "votes between groups without a say")
        node.tell(node.ranks[0], node.ranks[0].voting.on_prepared, vote)
        node.world.reach(node, "prepared")

    def crossed(self, passed: bool, undecided: bool) -> None:
        """Apply the result of the vote between the groups, which ended for rank 0 and with it for all ranks."""
        if self._node.ranks[0].step.phase is not StepPhase.VOTING:
            return  # rank 0's deadline has passed meanwhile
        mine = self._crossing
        assert mine is not None, "it was prepared"
        answer = self._feed(m.CrossVoteEnded(mine.step, mine.quorum, passed))
        self._decide(mine, answer.commit, answer.reason, undecided=undecided and not answer.commit)

    def _feed(self, event: m.GroupVote | m.CrossVoteEnded) -> m.VoteReply:
        """Return the group machine's answer, which is the only effect."""
        (answer,) = self._node.handle(event)
        assert isinstance(answer, m.VoteReply)
        return answer

    def _decide(self, vote: RankVote, commit: bool, reason: str, *, undecided: bool, but: int | None = None) -> None:
        """Announce the decision on a step to all ranks (but `but`)."""
        node = self._node
        node.world.checker.on_decision(node, node.machine.quorum, commit)
        node.world.note(node.replica_id, "decides {} {}", "commit" if commit else "no:", reason)
        self.owes_start = commit
        label = (vote.quorum, vote.step)
        decision = HeldState.decide(node, label, commit)
        for rank in node.ranks:
            if rank.rank != but:
                node.tell(rank, rank.voting.on_decision, label, commit, reason, undecided, decision)
        if commit:
            node.world.reach(node, "decided")

    def start(self, quorum_id: int, state: State, runs_on: bool) -> None:
        """Announce to the other ranks how rank 0 begins the step after a commit, so that all begin alike."""
        self.owes_start = False
        for rank in self._node.ranks[1:]:
            self._node.tell(rank, rank.on_start, runs_on, quorum_id, state)

"""A rank's calls with plain arguments, for programs without a step machine: tests and benchmarks."""

from __future__ import annotations

from typing import Any

from torchft_x.core.messages.group import Ask, CrossVoteEnded, QuorumReply, Vote, VoteReply
from torchft_x.core.types import State


class RankCalls:
    """Calls that a group server and a client of it offer alike. The subclass carries out the first four methods."""

    def next_call(self) -> int:
        """Return the `call` number of an `Ask` or a vote."""
        raise NotImplementedError

    def ask(self, ask: Ask) -> object:
        """Send `ask`, or leave that to `answer`. Return what `answer` takes as `asked`."""
        raise NotImplementedError

    def answer(self, ask: Ask, asked: object, timeout: float) -> QuorumReply:
        """Wait at most `timeout` seconds for the answer to `ask`, and return it. Raises the errors of `quorum`."""
        raise NotImplementedError

    def vote(self, vote: Vote | CrossVoteEnded, timeout: float) -> VoteReply:
        """Vote, or report the outcome of the vote between groups. Every rank of the group must do it.

        Return the group's answer, after at most `timeout` seconds."""
        raise NotImplementedError

    def quorum(
        self, *, group_rank: int, state: State, timeout: float, patience: float = 0.0, **fields: Any
    ) -> QuorumReply:
        """Ask for a quorum and wait up to `timeout` seconds. Every rank of the group must ask. `fields`: others of `Ask`.

        With `patience` it waits up to that many seconds longer, as long as something is heard (`QuorumDeadline`).

        Raises `DeadlineError`, which names the missing ranks, groups or lighthouse; `RefusedError` if `traits` differ
        from the other groups'; `FencedError` if a newer attempt of this group runs; `TokenError`; `UnreachableError`.
        """
        usual = timeout if patience > 0 else 0.0
        ask = Ask(self.next_call(), group_rank, state, usual=usual, **fields)
        return self.answer(ask, self.ask(ask), timeout + patience)

    def should_commit(self, group_rank: int, step: int, quorum_id: int, ok: bool, timeout: float) -> tuple[bool, str]:
        """Vote in a group that doesn't vote with other groups, and return its decision: (commit?, why not)."""
        reply = self.vote(Vote(self.next_call(), group_rank, step, quorum_id, ok), timeout)
        return reply.commit, reply.reason

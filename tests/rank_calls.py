"""Calls of a rank to its group server with plain arguments, for tests without a step machine."""

from __future__ import annotations

from typing import Any

from torchft_x.core.messages.group import Ask, GroupVote, QuorumReply
from torchft_x.core.types import State
from torchft_x.rpc.group.client import GroupClient
from torchft_x.rpc.group.server import GroupServer


def quorum(
    target: GroupServer | GroupClient,
    *,
    state: State,
    timeout: float,
    group_rank: int = 0,
    patience: float = 0.0,
    **fields: Any,
) -> QuorumReply:
    """Ask for a quorum and wait up to `timeout` seconds, or `patience` longer as long as something is heard.

    `fields`: others of `Ask`.
    """
    usual = timeout if patience > 0 else 0.0
    ask = Ask(target.next_call(), group_rank, state, usual=usual, **fields)
    return target.answer(ask, target.ask(ask), timeout + patience)


def commit(server: GroupServer, quorum_id: int, step: int = 0) -> tuple[bool, str]:
    """Vote yes for all ranks of a group that doesn't vote with others. Return (whether it commits, why not)."""
    reply = server.shell.vote(GroupVote(step, quorum_id))
    return reply.commit, reply.reason

"""A question to the group server that is on its way, or answered already."""

from __future__ import annotations

from collections.abc import Callable

from torchft_x.rpc.codec.ranks import QuorumReply


class PendingReply:
    """`reply` is the answer if it came at once; else `wait` gets it. Used once."""

    __slots__ = ("_fetch", "reply")

    def __init__(self, reply: QuorumReply | None, fetch: Callable[[float], QuorumReply] | None = None) -> None:
        self.reply = reply  # None: wait for it
        self._fetch = fetch  # waits at most so many seconds

    def wait(self, timeout: float) -> QuorumReply:
        """The answer, after at most `timeout` seconds. Raises as `GroupClient.quorum`."""
        if self.reply is not None:
            return self.reply
        assert self._fetch is not None
        return self._fetch(timeout)

"""A supervisor's lines to several lighthouses: each is told everything, so that each has the proof of a death.

With a life's end goes its last word: what it had received when it ended, as it has written it down (group/last_quorum_file.py).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial

from torchft_x.errors import ConfigError, RefusedError
from torchft_x.net import Address
from torchft_x.rpc.group import last_quorum_file
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.supervisor.client import REFUSED_CODE, SupervisorClient
from torchft_x.rpc.transport import loop

log = logging.getLogger(__name__)


class SupervisorFanout:
    """The same calls as of a `SupervisorClient`. For groups on one node, and companions.

    It is told to stop when a lighthouse says so and no other one that is there would have it go on: one that was started
    wrongly must not end a job that trains at another one. The job's `own` are obeyed at once: only the one in charge says
    so (`core.job.outcome`). One that refuses it (token, version) is asked again, now and then, and the others are waited for:
    those that were there before, and for a moment those that were not.
    """

    def __init__(
        self,
        lighthouses: Sequence[Address],
        group: str,
        host: str,
        boot_id: str,
        token: str | None = None,
        *,
        companion: str = "",
        own: bool = False,
    ) -> None:
        self._name = companion or group  # for people
        self._own = own  # see above
        self._chain = secrets.token_hex(8)  # of the lives that this supervisor starts
        self._before = b""  # the newest quorum that one of them has received, serialized
        self._needed: frozenset[str] = frozenset()  # members of it, and of what it follows
        self._records: dict[str, str] = {}  # life that has not ended -> path of its record
        self._orders: dict[int, tuple[int, str]] = {}  # lines that were told to stop; changed on the notifiers' threads
        self._refusals: dict[int, str] = {}  # newest sentence of lines that were refused; changed there, too
        self._on_stop: Callable[[int, str], None] | None = None  # see on_stop
        self._lines = [
            SupervisorClient(a.url, group, host, boot_id, token, companion=companion, place=i + 1)
            for i, a in enumerate(lighthouses)
        ]
        for i, line in enumerate(self._lines):
            line.keep_words(lambda: self._needed, lambda: self._chain)
            line.on_refused(partial(self._refused, i))

    def __repr__(self) -> str:
        return f"SupervisorFanout({self._lines})"

    # --- reports ---------------------------------------------------------------------------------------------------------

    def make_record(self, life: str, path: str) -> None:
        """The file in which this life shall write down what it receives; at once, before it begins. Raises `ConfigError`."""
        try:
            last_quorum_file.make_record(path, self._chain, self._before)
        except OSError as e:
            raise ConfigError(
                f"{path} can't be written ({e.strerror}); with several lighthouses each life of a group writes there what "
                "it has received. Make room on the disk of the temporary directory (TMPDIR), or name another."
            ) from None
        self._records[life] = path

    def started(self, attempt: int, life: str) -> None:
        for line in self._lines:
            line.started(attempt, life)

    def exited(self, attempt: int, life: str, code: int, reason: str) -> None:
        """No process of it is left: what it has written down is final."""
        word = self._last_word(life)
        for line in self._lines:
            line.exited(attempt, life, code, reason, word)

    def halted(self, life: str, who: str, seconds: float) -> None:
        for line in self._lines:
            line.halted(life, who, seconds)

    def done(self, code: int, sentence: str) -> None:
        for line in self._lines:
            line.done(code, sentence)

    def _last_word(self, life: str) -> pb.LastWord | None:
        """None: nobody knows; or it never spoke to a lighthouse, so that nobody asks."""
        path = self._records.pop(life, None)
        if path is None:
            return None
        try:
            word, before = last_quorum_file.read_word(path)
        except (OSError, RefusedError) as e:
            why = e.strerror if isinstance(e, OSError) else str(e)
            log.error(
                "%s: what the life that has ended had received can't be read (%s): %s. The lighthouses will count it as "
                "one that may have gone on.",
                self._name,
                path,
                why,
            )
            self._chain, self._before, self._needed = secrets.token_hex(8), b"", frozenset()  # nobody can stand for it
            for line in self._lines:
                line.break_chain()
            return None
        if before != self._before:
            quorum = pb.Quorum.FromString(before)
            self._before = before
            self._needed = frozenset(m.replica_id for q in (*quorum.follows, quorum) for m in q.members)
        return pb.LastWord.FromString(word) if word else None

    # --- orders ----------------------------------------------------------------------------------------------------------

    def on_stop(self, callback: Callable[[int, str], None]) -> None:
        """See `SupervisorClient.on_stop`."""
        self._on_stop = callback
        for i, line in enumerate(self._lines):
            line.on_stop(partial(self._ordered, i))

    def _ordered(self, line: int, code: int, sentence: str) -> None:
        self._orders[line] = (code, sentence)
        others = [x for i, x in enumerate(self._lines) if i not in self._orders and x.is_up()]
        if others and not self._own:
            log.error("%s goes on, because another lighthouse is there, though one says: %s", self._name, sentence)
        elif self._on_stop is not None:
            self._on_stop(code, sentence)

    def _refused(self, line: int, sentence: str) -> None:
        """Again and again. What is final is said by `_ordered`."""
        if any(x.may_come() for i, x in enumerate(self._lines) if i != line and i not in self._orders):
            if self._refusals.get(line) != sentence:
                log.error(
                    "%s goes on, because another lighthouse is there or may come; it asks again, though one says: %s",
                    self._name,
                    sentence,
                )
            self._refusals[line] = sentence
        elif self._on_stop is not None:
            on_stop, self._on_stop = self._on_stop, None
            on_stop(REFUSED_CODE, sentence)

    def on_number(self, callback: Callable[[int], None]) -> None:
        """See `SupervisorClient.on_number`; the highest that is told counts."""
        for line in self._lines:
            line.on_number(callback)

    def is_up(self) -> bool:
        return any(line.is_up() for line in self._lines)

    def away(self) -> float:
        """Seconds since any of them was last in touch."""
        return min(line.away() for line in self._lines)

    def close(self, flush: float = 2.0) -> None:
        """Of all lines at the same time, see `SupervisorClient.close`."""

        async def finish() -> None:
            await asyncio.gather(*(line.finish(flush) for line in self._lines))

        loop.call(finish(), flush + 5.0, "closing the lines to the lighthouses")

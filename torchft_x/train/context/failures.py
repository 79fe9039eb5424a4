"""Collects the errors of the current step from all threads.

It keeps the first error of a (quorum, step) and releases the collectives of that quorum at once. This rank's are
released so that nothing waits for a lost member. The closed connections release the other groups', which could only
wait for us.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from torchft_x.core.commit.step import Step
from torchft_x.core.commit.values import Outcome
from torchft_x.core.data.deal import Deal
from torchft_x.core.data.state import Position
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.training.heal_limits import HealRetries
from torchft_x.core.types import Prepared, State, listed, readable
from torchft_x.errors import (
    CollectiveError,
    DeadlineError,
    FencedError,
    RefusedError,
    TorchftXError,
    TransferError,
    UnreachableError,
)
from torchft_x.observe.events import EventLog
from torchft_x.timing import POLL_FAST, TIMING

if TYPE_CHECKING:
    from torchft_x.train.context.peer_links import PeerLinks

_FEW = 8  # if an error names no suspects, up to this many others are reported before the join


class StepFailures:
    """Collector of one rank's errors. Owns the lock around the step machine; its methods may run on any thread."""

    def __init__(
        self,
        step: Step,
        peers: PeerLinks,
        log: logging.LoggerAdapter[Any],
        events: EventLog,
        suspect: Callable[[tuple[str, ...]], None] = lambda _: None,
        stop: Callable[[str], None] = lambda _: None,
        *,
        heal_patience: float = inf,
    ) -> None:
        self.lock = threading.RLock()  # guards `step` and the attributes below; nothing waits or does I/O under it
        self.step = step
        self.events = events
        self._peers = peers
        self._log = log
        self._heal_retries = HealRetries(heal_patience)  # counts failed heals, and decides when there were too many
        self.given_up: Counter[str] = Counter()  # heals from this rank given up after all was sent, by group
        self._stop = stop  # releases all waits for other ranks of the group
        self._suspect = suspect  # reports suspects to the lighthouse, without waiting
        self.plan: QuorumPlan | None = None  # plan of the current quorum or the last one
        self._configuring = False  # whether a configure was decided on and has not ended
        self.broken = True  # whether the process group must be configured again even for the same members
        self._config_id = 0  # config id of the newest configure that was begun
        self.ended: TorchftXError | None = None  # why this group must stop; None if it needn't

    # --- from the training and the quorum thread ----------------------------------------------------------------------

    def begin(
        self,
        plan: QuorumPlan,
        top: State,
        rank: int | None,
        size: int,
        commit: Prepared | None = None,
        deal: Deal | None = None,
    ) -> Outcome | None:
        """Begin a step at `top` in the quorum of `plan`. Return how an undecided step ended (`Step.begin`)."""
        with self.lock:
            self.plan = plan
            if not plan.heal:
                self._heal_retries.over()
            return self.step.begin(plan.quorum_id, top, rank, size, commit, deal)

    def configure(
        self, plan: QuorumPlan, make: Callable[[], None], silent: Callable[[], tuple[str, ...]] = lambda: ()
    ) -> float | None:
        """Run `make` if the process group must be configured for `plan`. An error is reported, not raised.

        `silent` is called after a failure that took longer than `TIMING.slow_connect`, and returns the replica ids of
        the members that do not answer this rank. They are reported to the lighthouse, which may leave out one end of a
        broken link.

        Return the seconds it took; None if there was nothing to do or it failed.
        """
        with self.lock:
            if self.step.error is not None:
                self.broken = True
                return None
            if plan.config_id == self._config_id and not self.broken:
                return None
            self._configuring, self._config_id, self.broken = True, plan.config_id, True
        began = time.monotonic()
        try:
            try:
                make()
            finally:
                self._configuring = False
        except Exception as e:
            if time.monotonic() - began >= TIMING.slow_connect:
                self._not_reached(plan, silent())
            self.fail(e, plan.quorum_id)
            return None
        with self.lock:
            self.broken = self.step.error is not None
        return time.monotonic() - began

    def _not_reached(self, plan: QuorumPlan, names: tuple[str, ...]) -> None:
        with self.lock:
            self.step.not_reached(plan.quorum_id, names)
        if names:
            who = readable(listed(names))
            self._log.warning("%s can't be reached from here: its host is gone, or the link to it is broken", who)

    @property
    def config_id(self) -> int:
        """Config id of the newest configure that was begun."""
        with self.lock:
            return self._config_id

    def fail(self, error: Exception, quorum_id: int | None = None) -> None:
        """Record an error of the current quorum, and release its collectives.

        If `quorum_id` is given and is not the current quorum, the error is ignored.
        """
        with self.lock:
            suspects = self._suspects(error)
            first = self.step.fail(error, quorum_id, suspects)
            step, config = self.step.top.step, self._config_id
        if first:
            if error is not self.ended:  # the training thread raises `ended` itself
                self._log.info("step %s fails: %s", step, readable(str(error)))  # a message for people
            if suspects and (getattr(error, "suspects", ()) or len(suspects) <= _FEW):
                self._suspect(suspects)  # at once: the join, which names them too, comes only after the step
            self._abort(config, str(error))

    def heal_failed(self, error: Exception, *, torn: bool) -> None:
        """Record a failed heal (`Step.heal_failed`). After too many the script's next call raises `TransferError`.

        A heal for which the others did not wait doesn't count: the lighthouse decides how often it is tried (R20).
        """
        with self.lock:
            left = self.step.error is not None
            release = self.step.heal_failed(error, torn=torn)
            config = self._config_id
            sources = self.plan.sources if self.plan is not None else ()
            source = sources[0].replica_id if sources else "nobody"
            enough = "" if left else self._heal_retries.failed(source, len(sources), str(error), time.monotonic())
            if enough:
                self.ended = self.ended or TransferError(enough)
        if enough:
            self.events.emit("error", reason=enough)
        else:
            self._log.warning("healing failed, it is tried again with the next quorum: %s", error)
        if release:
            self._abort(config, str(error))

    def healed(self, state: State, batches_committed: int, data: Position | None = None) -> None:
        """Record a complete heal (`Step.healed`)."""
        with self.lock:
            self._heal_retries.over()
            self.step.healed(state, batches_committed, data)

    def raise_if_ended(self) -> None:
        if self.ended is not None:
            raise type(self.ended)(*self.ended.args)

    # --- from the watch thread ----------------------------------------------------------------------------------------

    def on_over(self, quorum_id: int, lost: tuple[str, ...], reason: str, left: bool = False) -> None:
        why = f"lost {', '.join(lost)} ({reason}); the next quorum goes on without it." if lost else reason
        error = CollectiveError(f"quorum {quorum_id} is over: {why}")
        with self.lock:
            first = self.step.over(quorum_id, error)
            config = self._config_id
        for replica_id in lost:
            self.events.emit("member_lost", quorum=quorum_id, lost=replica_id, reason=reason, left=left or None)
        if first:
            self._log.info("%s", readable(str(error)))
            self._abort(config, str(error))

    def on_end(self, sentence: str, fenced: bool) -> None:
        error: TorchftXError = (FencedError if fenced else RefusedError)(sentence)
        with self.lock:
            self.ended = self.ended or error
        self._log.info("this group must stop: %s", sentence)  # every later call of the script raises the error
        self.events.emit("error", reason=sentence)
        self.fail(error)
        self._stop(sentence)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _abort(self, config_id: int, reason: str) -> None:
        with self.lock:
            # If this thread is late, the process group was configured again and is whole. Configuring it once more on
            # this rank only, under existing keys, would leave every member waiting for the others.
            if self._config_id == config_id:
                self.broken = True
        self._peers.abort(config_id)
        self.events.emit("abort", quorum=self.step.quorum_id, step=self.step.top.step, reason=reason)
        # A configure that was decided on before the error may begin after this abort, and wait for a dead member.
        while self._configuring and self._config_id == config_id:
            time.sleep(POLL_FAST)
            self._peers.abort(config_id)

    def _suspects(self, error: Exception) -> tuple[str, ...]:
        """Return the members to report to the lighthouse: those that the error names, else all others."""
        if self.plan is None or not isinstance(error, (CollectiveError, DeadlineError, UnreachableError)):
            return ()
        if named := tuple(getattr(error, "suspects", ())):
            return named
        ids = self.plan.replica_ids
        return ids[: self.plan.replica_rank] + ids[self.plan.replica_rank + 1 :]

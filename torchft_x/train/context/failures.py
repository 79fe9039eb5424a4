"""Everything that can go wrong with the step in hand, from any thread, arrives here.

The first error of a (quorum, step) is kept, and the collectives of that quorum are released at once: this rank's, so
that nothing waits for a lost member, and by the closed connections the other groups', which could only wait for us.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from torchft_x.core.commit.step import Outcome, Step, over_error
from torchft_x.core.heal import Plan
from torchft_x.core.training.heal_retries import HealRetries
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
from torchft_x.timing import TIMING

_FEW = 8  # of so many others one may ask after all when the error names none; of more only with the join
_ABORT_AGAIN = 0.01  # seconds between aborts of a configure that has perhaps not begun


class Abortable(Protocol):
    def abort(self, config_id: int) -> None:
        """Release whoever waits for the members of `config_id`."""


class StepFailures:
    """Owns the lock around the step machine. Callbacks of the watch and of works may come from any thread."""

    def __init__(
        self,
        step: Step,
        peers: Abortable,
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
        self._heal_retries = HealRetries(heal_patience)  # heals that failed; decides when there were too many
        self.given_up: Counter[str] = Counter()  # heals from here that were given up when all was sent, by group
        self._stop = stop  # releases who waits for other ranks of the group
        self._suspect = suspect  # tells the lighthouse whom to look after, without waiting
        self.plan: Plan | None = None  # of the quorum in hand or the last one
        self._configuring = False  # between the decision to configure and its end
        self.broken = True  # the process group must be made anew even if its members stay
        self._config_id = 0  # of the newest configure that was begun
        self.ended: TorchftXError | None = None  # this group must stop

    # --- from the training and the quorum thread ----------------------------------------------------------------------

    def begin(
        self, plan: Plan, top: State, rank: int | None, size: int, commit: Prepared | None = None
    ) -> Outcome | None:
        """A step begins at `top`, and its quorum is in hand from here on. Returns how a step ended that was left undecided; see `Step.begin`."""
        with self.lock:
            self.plan = plan
            if not plan.heal:
                self._heal_retries.over()
            return self.step.begin(plan.quorum_id, top, rank, size, commit)

    def configure(
        self, plan: Plan, make: Callable[[], None], silent: Callable[[], tuple[str, ...]] = lambda: ()
    ) -> float | None:
        """Run `make` if the process group must be made anew for `plan`; an error is reported, not raised.

        `silent`: asked after a failure that took longer than `TIMING.slow_connect`, for the replica ids of the members
        that do not answer this rank. The lighthouse is told of them: it may leave one end of a broken link out.

        Returns the seconds it took, None if there was nothing to do or it failed.
        """
        with self.lock:
            if self.step.error is not None:
                self.broken = True
                return None
            if plan.config_id == self._config_id and not self.broken:
                return None
            self._configuring, self._config_id, self.broken = True, plan.config_id, True
        began = time.monotonic()
        error: Exception | None = None
        try:
            make()
        except Exception as e:
            error = e
        finally:
            self._configuring = False
        if error is not None:
            if time.monotonic() - began >= TIMING.slow_connect:
                self._not_reached(plan, silent())
            self.fail(error, plan.quorum_id)
            return None
        with self.lock:
            self.broken = self.step.error is not None
        return time.monotonic() - began

    def _not_reached(self, plan: Plan, names: tuple[str, ...]) -> None:
        with self.lock:
            self.step.not_reached(plan.quorum_id, names)
        if names:
            who = readable(listed(names))
            self._log.warning("%s can't be reached from here: its host is gone, or the link to it is broken", who)

    @property
    def config_id(self) -> int:
        """Of the newest configure that was begun."""
        with self.lock:
            return self._config_id

    def fail(self, error: Exception, quorum_id: int | None = None) -> None:
        """Note an error of the quorum in hand (or of `quorum_id`, if it still is the one) and release its collectives."""
        with self.lock:
            suspects = self._suspects(error)
            first = self.step.fail(error, quorum_id, suspects)
            step, config = self.step.top.step, self._config_id
        if first:
            if error is not self.ended:  # the training thread raises that one
                self._log.info("step %s fails: %s", step, readable(str(error)))  # people read the story of it
            if suspects and (getattr(error, "suspects", ()) or len(suspects) <= _FEW):
                self._suspect(suspects)  # now; the join, which names them too, comes when the step has ended
            self._abort(config, str(error))

    def heal_failed(self, error: Exception, *, torn: bool) -> None:
        """See `Step.heal_failed`. After too many the group must stop: the next call of the script raises `TransferError`.
        One that the others have not waited for doesn't count: how often it is tried is the lighthouse's business (R20).
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

    def healed(self, state: State, batches_committed: int) -> None:
        """See `Step.healed`."""
        with self.lock:
            self._heal_retries.over()
            self.step.healed(state, batches_committed)

    def raise_if_ended(self) -> None:
        if self.ended is not None:
            raise type(self.ended)(*self.ended.args)

    # --- from the watch thread ----------------------------------------------------------------------------------------

    def on_over(self, quorum_id: int, lost: tuple[str, ...], reason: str, left: bool = False) -> None:
        error = over_error(quorum_id, lost, reason)
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
        self._log.info("this group must stop: %s", sentence)  # every call of the script raises it from now on
        self.events.emit("error", reason=sentence)
        self.fail(error)
        self._stop(sentence)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _abort(self, config_id: int, reason: str) -> None:
        with self.lock:
            # This thread may be late: the group may have been made anew since, and that one is whole. Making it
            # again alone, under keys that exist already, would leave every member waiting for the others.
            if self._config_id == config_id:
                self.broken = True
        self._peers.abort(config_id)
        self.events.emit("abort", quorum=self.step.quorum_id, step=self.step.top.step, reason=reason)
        # A configure decided on before the error may begin after this abort; then it waits for a dead member.
        while self._configuring and self._config_id == config_id:
            time.sleep(_ABORT_AGAIN)
            self._peers.abort(config_id)

    def _suspects(self, error: Exception) -> tuple[str, ...]:
        """Members the lighthouse should look at: those the error names, else all others."""
        if self.plan is None or not isinstance(error, (CollectiveError, DeadlineError, UnreachableError)):
            return ()
        if named := tuple(getattr(error, "suspects", ())):
            return named
        ids = self.plan.replica_ids
        return ids[: self.plan.replica_rank] + ids[self.plan.replica_rank + 1 :]

"""The shell of `core.lighthouse.lease`: a thread that renews the lease, and the checks before any message is sent.

While the register does not answer, the lease is not renewed and ends by this process's own clock. A process that has
lost the lease ends (`on_lost`), because its knowledge may be old, and is restarted as a standby.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torchft_x.core.lighthouse.lease import LeaseEntry, LeaseRule, Register
from torchft_x.timing import POLL, TIMING

log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """This process may send no more messages. Not a `TorchftXError`, because no handler may answer a client with it."""


def lease_clock() -> float:
    """Return monotonic seconds that also advance while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Lease of one lighthouse. Call `acquire`, `start`, and at last `end`; `holds` and `confirm` are thread-safe."""

    def __init__(
        self,
        register: Register,
        owner: str,
        on_lost: Callable[[str], None],
        *,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Prepare the lease of `owner` (see `LeaseRule`).

        `on_lost(sentence)` is called once, on the thread that detects the loss; it usually ends the process."""
        self._register = register
        self._on_lost = on_lost
        self._clock = clock
        self._rule = LeaseRule(owner)
        self._lock = threading.Lock()  # serialises swaps of `confirm`, `end` and the thread
        self._lost = False  # on_lost was called
        self._why = "it does not answer"  # why the register could not be read or changed last
        self._ended = threading.Event()  # set: the lease is not renewed any more
        self._thread: threading.Thread | None = None  # renews the lease

    def __repr__(self) -> str:
        return f"Lease({self._rule})"

    @property
    def entry(self) -> LeaseEntry | None:
        """The entry that this lighthouse holds, or None."""
        return self._rule.held

    def acquire(
        self,
        wait: Callable[[float], bool],
        on_watch: Callable[[LeaseEntry], None] = lambda _: None,
        on_silence: Callable[[str], None] = lambda _: None,
    ) -> LeaseEntry | None:
        """Stand by until the lease is held or the job is over, and return the entry; None if a stop was ordered.

        `wait(seconds)` returns true to order a stop. `on_watch` is called with each entry of another owner before
        waiting for it, `on_silence` from time to time with the reason why the register can't be read or changed.
        """
        silent_since = self._clock()
        while True:
            entry = self.poll()
            if entry is not None:
                if entry.verdict is not None or entry is self._rule.held:
                    return entry
                silent_since = self._clock()
                on_watch(entry)
            elif self._clock() - silent_since > TIMING.failover_silence:
                on_silence(self._why)
                silent_since = self._clock()
            if wait(TIMING.failover_look):
                return None

    def poll(self) -> LeaseEntry | None:
        """Try to take the lease. Return the register's entry, ours if taken; None if it can't be read or changed."""
        try:
            entry = self._register.read()
            if entry is None:
                self._why = "its entry is missing"
                return None
            wanted = self._rule.poll(entry, self._clock())
            if wanted is None:
                return entry
            began = self._clock()
            if self._register.swap(entry, wanted):
                self._rule.swapped(wanted, began)
                return wanted
        except OSError as e:
            self._why = e.strerror or str(e)
            return None
        self._rule.failed()
        return None

    def start(self) -> None:
        """Start the thread that renews the lease."""
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Return whether this process may send messages. If not, call `on_lost` at once, even if the thread waits."""
        if self._ended.is_set():
            return False
        if self._rule.holds(self._clock()):
            return True
        self._lose(self._not_renewed())
        return False

    def confirm(self) -> None:
        """Prove that no other lighthouse has taken the lease up to now. Raises `LeaseLostError`, after `on_lost`.

        Called after each write to the journal, and before the written state is sent: a lighthouse that takes the lease
        later reads the journal afterwards, and finds it. Blocks while the register does not answer.
        """
        with self._lock:
            why = self._swap()
        if why:
            self.lose(why)

    def lose(self, sentence: str) -> None:
        """Give up the lease, which can't be held any more for the reason in `sentence`. Raises `LeaseLostError`."""
        self._lose(sentence)
        raise LeaseLostError(sentence)

    def end(self, code: int | None = None) -> None:
        """Release the lease after serving. With `code` the job is over for all; else a standby takes it at once."""
        self._ended.set()
        with self._lock:
            held = self._rule.held
            if held is None or self._lost:
                return
            try:
                self._register.swap(held, self._rule.released() if code is None else self._rule.job_over(code))
            except OSError as e:
                log.warning("%s can't be written (%s); the standbys will wait for the lease to end.", self._register, e)
            self._rule.failed()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _swap(self) -> str:
        """Renew the entry. Return '' or the reason why that failed. The caller holds the lock."""
        logged = False
        while True:
            held, began = self._rule.held, self._clock()
            if held is None or self._lost or not self._rule.holds(began):
                return self._not_renewed()
            new = self._rule.renewal()
            try:
                if not self._register.swap(held, new):
                    return f"another lighthouse has taken the lease, or its entry in {self._register} was deleted"
                self._rule.swapped(new, began)
                self._why = "it does not answer"
                return ""
            except OSError as e:
                self._why = e.strerror or str(e)
                if not logged:
                    log.warning("%s can't be written (%s); trying again.", self._register, self._why)
                    logged = True
                time.sleep(POLL)

    def _not_renewed(self) -> str:
        return f"the lease in {self._register} could not be renewed for {TIMING.failover_ttl:g} s ({self._why})"

    def _renew(self) -> None:
        while not self._ended.wait(TIMING.failover_renew):
            with self._lock:
                why = "" if self._ended.is_set() else self._swap()
            if why:
                self._lose(why)
                return

    def _lose(self, sentence: str) -> None:
        self._ended.set()
        if not self._lost:
            self._lost = True
            self._on_lost(sentence)

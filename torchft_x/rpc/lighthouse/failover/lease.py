"""The shell of `core.restart.lease`: a thread that renews the lease, and what must succeed before anything leaves.

While the register does not answer nothing is renewed, so that the lease ends by this process's own clock. Whoever has lost it
ends (`on_lost`): what it knows may be old. It is started again, as a standby.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torchft_x.core.restart.lease import LeaseEntry, LeaseRule, Register
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

_AGAIN = 0.1  # seconds until a swap that failed for an unknown reason is tried again


class LeaseLostError(Exception):
    """Nothing more may leave this process. Not one of ours: nobody shall answer a client with it."""


def lease_clock() -> float:
    """Monotonic seconds that go on while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """`acquire`, then `start`; `holds` and `confirm` from any thread; `end`."""

    def __init__(
        self,
        register: Register,
        owner: str,
        on_lost: Callable[[str], None],
        *,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """`owner`: see `LeaseRule`. `on_lost(sentence)` is called once, on the thread that has noticed; mostly it ends the
        process."""
        self._register = register
        self._on_lost = on_lost  # see above
        self._clock = clock
        self._rule = LeaseRule(owner)  # decides
        self._lock = threading.Lock()  # one swap at a time; taken by `confirm` and the thread
        self._lost = False  # on_lost was called
        self._why = "it does not answer"  # why it could not be read or changed last
        self._ended = threading.Event()  # nobody renews any more
        self._thread: threading.Thread | None = None  # renews

    def __repr__(self) -> str:
        return f"Lease({self._rule})"

    @property
    def entry(self) -> LeaseEntry | None:
        """As held; None: it isn't."""
        return self._rule.held

    def acquire(
        self,
        wait: Callable[[float], bool],
        on_watch: Callable[[LeaseEntry], None] = lambda _: None,
        on_silence: Callable[[str], None] = lambda _: None,
    ) -> LeaseEntry | None:
        """Stand by until the lease is held, or the job is over: the entry. None: told to stop, by a true `wait(seconds)`.

        `on_watch` hears of each entry that is another one's, before it is waited for; `on_silence` hears, now and then,
        why the register can't be read or changed.
        """
        silent_since = self._clock()
        while True:
            entry = self.look()
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

    def look(self) -> LeaseEntry | None:
        """Return what the register holds: our entry, if the lease could be taken. None: the register does not say."""
        try:
            entry = self._register.read()
            if entry is None:
                self._why = "its entry is missing"
                return None
            wanted = self._rule.look(entry, self._clock())
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
        """Renew it from now on."""
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Whether something may leave this process now. Says so to `on_lost` if not, whatever the thread waits for."""
        if self._ended.is_set():
            return False
        if self._rule.holds(self._clock()):
            return True
        self._lose(self._not_renewed())
        return False

    def confirm(self) -> None:
        """Prove that nobody has taken the lease up to now. Raises `LeaseLostError`, after `on_lost`.

        Called after each write to the journal and before anything leaves that was written there: whoever takes the lease
        later reads the journal after that, and finds it. Blocks while the register does not answer.
        """
        with self._lock:
            why = self._swap()
        if why:
            self.lose(why)

    def lose(self, sentence: str) -> None:
        """It can't be held any more, for this reason. Raises `LeaseLostError`."""
        self._lose(sentence)
        raise LeaseLostError(sentence)

    def end(self, code: int | None = None) -> None:
        """Nothing is served any more. The job goes on, so that a standby need not wait; with `code` it is over, for all."""
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

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _swap(self) -> str:
        """Advance the entry; the reason if that can't be. The lock is held."""
        said = False
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
                if not said:
                    log.warning("%s can't be written (%s); trying again.", self._register, self._why)
                    said = True
                time.sleep(_AGAIN)

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

"""Standing by: until it holds the lease (`lease.py`), a lighthouse does not listen, and logs which other one serves.

Clients read the address again that the one that serves has written, or try the next of their list.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torchft_x import net
from torchft_x.core.job.outcome import DESERTED
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.errors import AddressError, ConfigError
from torchft_x.net import Address
from torchft_x.rpc.lighthouse.failover.journal import Journal
from torchft_x.rpc.lighthouse.failover.lease import Lease
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, open_lease
from torchft_x.rpc.lighthouse.failover.lease_journal import newest_epoch, open_epoch_journal
from torchft_x.timing import POLL_SLOW

log = logging.getLogger(__name__)


class HeldLease(NamedTuple):
    """The lease and the journal of the lighthouse that serves."""

    lease: Lease
    journal: Journal
    first: bool
    """Whether no lighthouse has served before, so that no quorum was issued."""


def hold_lease(
    folder: Path,
    owner: str,
    *,
    address: str,
    bind: Address,
    boot_id: str,
    run: bytes,
    again: bool,
    on_lost: Callable[[str], None],
    wait: Callable[[float], bool],
) -> HeldLease | int:
    """Stand by until the lease is held, and return it; an exit code if the job is over, or a stop was ordered.

    `owner` is this lighthouse's name in the lease (`core.lighthouse.lease.LeaseRule`), `address` the URL by which others
    reach it, for people, and `run` the job's fingerprint (`journal.fingerprint`). `again`: it was restarted, so that the
    register existed before. `wait(seconds)` returns true to order a stop.

    Raises `AddressError`; `ConfigError` if the directory is unusable."""
    register = _open(folder, again, wait)
    if register is None:
        return 0
    lease = Lease(register, owner, on_lost)
    entry = _stand_by(lease, register, bind, wait)
    if entry is None:
        return 0
    if entry.verdict is not None:
        log.info("The job is over: another lighthouse has ended with code %d.", entry.verdict)
        return entry.verdict
    lease.start()
    register.leave_note(entry, address)
    try:
        journal, first = open_epoch_journal(folder, entry, lease, boot_id=boot_id, run=run)
    except ConfigError as e:
        lease.end()
        if entry.epoch == 1:
            raise
        log.error("%s", e)
        return DESERTED
    log.info("This lighthouse has the lease (epoch %d): it serves.", entry.epoch)
    return HeldLease(lease, journal, first)


def _open(folder: Path, again: bool, wait: Callable[[float], bool]) -> LeaseDirectory | None:
    """Open the register. If it existed before and is away, wait until it is back. None: `wait` ordered a stop."""
    logged = False
    while True:
        try:
            return open_lease(folder / "lease", make=not again, epoch=newest_epoch(folder))
        except OSError as e:
            if not again:
                raise ConfigError(f"--lease_dir {folder} can't be used ({e.strerror or e}); name another.") from None
            if not logged:
                log.warning("%s is away (%s); this lighthouse stands by until it is back.", folder, e.strerror or e)
                logged = True
        if wait(POLL_SLOW):
            return None


def _stand_by(
    lease: Lease, register: LeaseDirectory, bind: Address, wait: Callable[[float], bool]
) -> LeaseEntry | None:
    """Run `Lease.acquire`, and log which lighthouse serves, or why none does."""
    logged = ""

    def log_once(level: int, sentence: str) -> None:
        nonlocal logged
        if sentence != logged:
            log.log(level, "%s", sentence)
            logged = sentence

    def on_watch(entry: LeaseEntry) -> None:
        holder = register.note(entry)
        if holder or not logged:
            log_once(
                logging.INFO,
                f"This lighthouse stands by; {f'the one at {holder}' if holder else 'another one'} serves.",
            )

    def on_silence(why: str) -> None:
        with contextlib.suppress(OSError):
            if register.mend(newest_epoch(register.folder.parent)):
                log.warning("%s was empty: somebody has deleted the lease. It is made again.", register)
                return
        log_once(
            logging.WARNING,
            f"This lighthouse stands by; the lease in {register} can't be taken ({why}), so that nobody serves. "
            "Make that directory writable, or start again with another.",
        )

    try:
        net.bound(bind).close()  # else a port that is taken would be noticed when this lighthouse takes over
    except OSError as e:
        raise AddressError(
            f"The lighthouse can't listen on {bind.target}: {e.strerror or e}; free the port or choose another."
        ) from None
    return lease.acquire(wait, on_watch, on_silence)

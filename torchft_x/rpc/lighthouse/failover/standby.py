"""Standing by: until it holds the lease (`lease.py`), a lighthouse answers every client at once that it does not serve.

A client treats that answer like a refused connect: it goes to the next address of its list. The sentence is for people.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from torchft_x._version import __version__
from torchft_x.core.job.outcome import DESERTED
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.errors import ConfigError, UnreachableError
from torchft_x.net import Address
from torchft_x.rpc.lighthouse.failover.journal import Journal
from torchft_x.rpc.lighthouse.failover.lease import Lease
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory, open_lease
from torchft_x.rpc.lighthouse.failover.lease_journal import newest_epoch, open_epoch_journal
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.grpc_errors import code_of
from torchft_x.rpc.transport.stream import unary_service
from torchft_x.timing import POLL_SLOW

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contender:
    """One of several lighthouses that contend for the lease."""

    owner: str
    """Its name in the lease, see `core.lighthouse.lease.LeaseRule`."""
    address: str
    """URL by which others reach it, for people."""
    bind: Address
    token: str | None
    boot_id: str
    run: bytes
    """The job's fingerprint, see `journal.fingerprint`."""
    again: bool
    """Whether it was restarted, so that the register existed before."""


@dataclass(frozen=True)
class HeldLease:
    """The lease and the journal of the lighthouse that serves."""

    lease: Lease
    journal: Journal
    first: bool
    """Whether no lighthouse has served before, so that no quorum was issued."""


def hold_lease(
    folder: Path, who: Contender, *, on_lost: Callable[[str], None], wait: Callable[[float], bool]
) -> HeldLease | int:
    """Stand by until the lease is held, and return it; an exit code if the job is over, or a stop was ordered.

    `wait(seconds)` returns true to order a stop. Raises `AddressError`; `ConfigError` if the directory is unusable."""
    register = _open(folder, who.again, wait)
    if register is None:
        return 0
    lease = Lease(register, who.owner, on_lost)
    entry = _stand_by(lease, register, who, wait)
    if entry is None:
        return 0
    if entry.verdict is not None:
        log.info("The job is over: another lighthouse has ended with code %d.", entry.verdict)
        return entry.verdict
    lease.start()
    register.leave_note(entry, who.address)
    try:
        journal, first = open_epoch_journal(folder, entry, lease, boot_id=who.boot_id, run=who.run)
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
    lease: Lease, register: LeaseDirectory, who: Contender, wait: Callable[[float], bool]
) -> LeaseEntry | None:
    """Run `Lease.acquire`, with a server that answers clients meanwhile."""
    server = StandbyServer(who.token)

    def on_watch(entry: LeaseEntry) -> None:
        server.holder, server.silence = register.note(entry) or server.holder, ""
        if not server.serving:
            loop.call(server.start(who.bind), 10.0, "starting the standby")
            log.info("%s", server.sentence())

    def on_silence(why: str) -> None:
        with contextlib.suppress(OSError):
            if register.mend(newest_epoch(register.folder.parent)):
                log.warning("%s was empty: somebody has deleted the lease. It is made again.", register)
                return
        logged = server.silence
        server.silence = f"the lease in {register} can't be taken ({why}), so that nobody serves"
        if server.silence != logged:
            log.warning("%s Make that directory writable, or start again with another.", server.sentence())

    try:
        return lease.acquire(wait, on_watch, on_silence)
    finally:
        if server.serving:
            loop.call(server.stop(), 5.0, "ending the standby")


class StandbyServer:
    """Server that answers all clients that this lighthouse stands by. `start` and `stop` run on `transport.loop`."""

    def __init__(self, token: str | None) -> None:
        self._token = token  # None: open to all
        self.holder = ""  # address of the lighthouse that serves; '': unknown
        self.silence = ""  # why no lighthouse serves; '': one may
        self._server: grpc.aio.Server | None = None

    def __repr__(self) -> str:
        return f"StandbyServer(the holder is {self.holder or 'unknown'})"

    @property
    def serving(self) -> bool:
        return self._server is not None

    def sentence(self) -> str:
        """Return the sentence that clients receive."""
        others = f"the one at {self.holder} serves" if self.holder else "another one serves"
        return f"This lighthouse stands by; {self.silence or others}."

    async def start(self, bind: Address) -> int:
        """Listen and return the port. Raises `AddressError`."""
        connections = grpc_options.lighthouse_connections(grpc_options.raise_descriptor_limit())
        server = grpc_options.make_server(self._token, connections)
        server.add_generic_rpc_handlers(
            (
                grpc_options.stream_service(grpc_options.SESSION, "Session", self._refuse_stream),
                grpc_options.stream_service(grpc_options.SUPERVISE, "Supervise", self._refuse_stream),
                unary_service(grpc_options.STATUS, Status=self._status, Overview=self._status),
                unary_service(grpc_options.LIGHTHOUSE, Quorum=self._refuse, Heartbeat=self._refuse),
            )
        )
        port = grpc_options.listen(server, bind, "The lighthouse")
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _refuse(self, _request: bytes, _context: Any) -> bytes:
        raise UnreachableError(self.sentence())

    async def _refuse_stream(self, _iterator: Any, context: Any) -> None:
        error = UnreachableError(self.sentence())
        await context.abort(code_of(error), str(error))

    async def _status(self, _request: bytes, _context: Any) -> bytes:
        status = {"version": __version__, "wire": grpc_options.WIRE, "standby": self.sentence()}
        return json.dumps(status).encode()

"""Finds the lighthouse of this job, and connects to it: at the given addresses, else by the address file, else at the scheduler's host.

The address file is exact, but needs a shared directory. One that an earlier run has left names nobody that answers, so the
search goes on. The scheduler's host needs no directory, but a port that is fixed beforehand. Another job's lighthouse may
serve there, so that way needs a token, by which a stranger refuses us.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from torchft_x import env, tls
from torchft_x.address_files import LIGHTHOUSE, read_address
from torchft_x.errors import ConfigError
from torchft_x.net import Address, check_any_resolvable, parse_addresses
from torchft_x.timing import CONNECT

if TYPE_CHECKING:
    from torchft_x.rpc.supervisor_client import SupervisorClient

Reports: TypeAlias = "SupervisorClient"
"""Client that reports to the lighthouse."""


@dataclass(frozen=True)
class FoundLighthouse:
    """A reachable lighthouse: its addresses and its token."""

    addresses: tuple[Address, ...]  # the whole list, of which at least one answers
    token: str | None = field(repr=False)
    address_file: str = field(kw_only=True, default="")  # names its new address if it moves; empty: it can't move
    token_file: str | None  # file with the same token, for the trainer; None: it inherits TORCHFT_X_TOKEN, or has none

    @property
    def url(self) -> str:
        """Comma-separated addresses, in the format of TORCHFT_LIGHTHOUSE."""
        return ",".join(a.url for a in self.addresses)


class Locator:
    """Search for the lighthouse. Each call of `poll` is one attempt, and waits no longer than one connect to each address.

    With `given` no other address is tried. Without it the address file in `run_dir` is tried, then the host in the variable
    named by TORCHFT_X_LIGHTHOUSE_AT. The token comes from the environment, else from `run_dir`.

    Raises `ConfigError` (`AddressError` for an address) where waiting would not help.
    """

    def __init__(self, run_dir: Path | None, given: str | None, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._file = None if run_dir is None else run_dir / LIGHTHOUSE
        self._token_file = None if run_dir is None else run_dir / "token"
        self._given: tuple[Address, ...] = ()  # empty: search by the run directory and the scheduler
        self._tried: list[str] = []  # failures of the last call of `poll`, a clause each
        # Variable with the host, and port. None for a local job, which shares its host's ports with other jobs.
        self._at = None if env.is_local_job(environ) else env.read_lighthouse_at(environ)
        if given is not None:
            self._given = parse_addresses(given, what=env.LIGHTHOUSE)
            env.enable_tls_if_https(given)
            check_any_resolvable(self._given, what=env.LIGHTHOUSE)
        elif run_dir is None and self._at is None:
            raise ConfigError(
                f"No lighthouse: set {env.LIGHTHOUSE} to its address, or --run_dir to a shared directory."
            )

    @property
    def missing(self) -> str:
        """Clause for people: the lighthouse is missing, and these places were tried."""
        return f"the lighthouse ({'; '.join(self._tried)})"

    def poll(self) -> FoundLighthouse | None:
        """Return the lighthouse if it can be reached now, else None."""
        self._tried = []
        if self._given:
            return self._with_token(*self._given) if any(self._answers(a) for a in self._given) else None
        return self._by_file() or self._by_host()

    def _answers(self, address: Address, by: str = "") -> bool:
        try:
            socket.create_connection((address.host, address.port), timeout=CONNECT).close()
        except (OSError, UnicodeError) as e:  # UnicodeError: not a valid host name
            self._tried.append(f"{address.url}{by}: {getattr(e, 'strerror', None) or e}")
            return False
        return True

    def _by_file(self) -> FoundLighthouse | None:
        """Return the lighthouse that the address file names, if it answers.

        The file may be an earlier run's: it is read each time. The token is written before the address, so it is readable now.
        """
        if self._file is None:
            return None
        address = None
        with contextlib.suppress(OSError):
            address = read_address(self._file)
        if address is None:
            self._tried.append(f"no address in {self._file} yet")
            return None
        if not self._answers(address, f" by {self._file}"):
            return None
        return dataclasses.replace(self._with_token(address), address_file=str(self._file.absolute()))

    def _by_host(self) -> FoundLighthouse | None:
        if self._at is None:
            return None
        host_in, port = self._at
        host = first_host(env.read(host_in, "", self._environ) or "")
        if not host:
            self._tried.append(f"no host in the variable {host_in}")
            return None
        address = Address(host, port)
        # A job's own lighthouse has a token. Without one, only another job's lighthouse could answer.
        if not self._has_token():
            where = f"{env.TOKEN}, {env.TOKEN_FILE}" + (f" or {self._token_file}" if self._token_file else "")
            self._tried.append(f"{address.url} by {host_in}: no token for it in {where}")
            return None
        return self._with_token(address) if self._answers(address, f" by {host_in}") else None

    def _has_token(self) -> bool:
        return self._given_token() or (self._token_file is not None and self._token_file.exists())

    def _given_token(self) -> bool:
        return any(env.read(name, None, self._environ) for name in (env.TOKEN, env.TOKEN_FILE))

    def _with_token(self, *addresses: Address) -> FoundLighthouse:
        environ = dict(self._environ)
        if not self._given_token() and self._has_token():
            environ[env.TOKEN_FILE] = str(self._token_file)
        token = tls.use_token(env.read_token(environ))
        return FoundLighthouse(addresses, token, env.read(env.TOKEN_FILE, None, environ))


def first_host(text: str) -> str:
    """Return the first host of a list with commas."""
    return text.partition(",")[0].strip()


def connector(group: str, node: int = 0, nodes: int = 1, *, sidecar: str = "") -> Callable[[FoundLighthouse], Reports]:
    """Return a function that imports grpc and makes the client for a group, one node of it, or a sidecar."""

    def connect(found: FoundLighthouse) -> Reports:
        from torchft_x.rpc.supervisor_client import SupervisorClient

        return SupervisorClient(
            lighthouse=found.url,
            group=group,
            host=socket.gethostname(),
            token=found.token,
            node=node,
            nodes=nodes,
            sidecar=sidecar,
            lighthouse_file=found.address_file,
        )

    return connect

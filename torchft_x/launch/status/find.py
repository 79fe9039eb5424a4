"""Finds a run by its directory, its lighthouse's address or its job, or takes the newest run below runs/.

Imports neither grpc nor torch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchft_x import env, tls
from torchft_x.address_files import LIGHTHOUSE, read_address
from torchft_x.errors import AddressError, ConfigError, UnreachableError
from torchft_x.launch.kubernetes.handle import is_handle
from torchft_x.net import Address, parse_addresses
from torchft_x.observe.events import last_event
from torchft_x.observe.run_dirs import RUNS, newest_run
from torchft_x.timing import CONNECT

if TYPE_CHECKING:
    from torchft_x.launch.kubernetes.remote import Remote

_OF_A_RUN = ("events", LIGHTHOUSE, "token")  # a run directory has one of these


class NobodyServesError(UnreachableError):
    """Error: no lighthouse of a run serves. `run_dir` is the run's, None if only an address is known."""

    exit_code = 3

    def __init__(self, sentence: str, run_dir: Path | None) -> None:
        super().__init__(sentence)
        self.run_dir = run_dir


@dataclass(frozen=True)
class Run:
    """Run that was found, with its lighthouse or its end."""

    what: str  # description for messages
    run_dir: Path | None
    lighthouse: Address | None = None  # that accepts a connection
    token: str | None = field(default=None, repr=False)
    ended: Mapping[str, Any] | None = None  # last event of the lighthouse of a run that is over
    remote: Remote | None = None
    """Client for a job of kubernetes_ft, which is reached through the API server, without `lighthouse`."""


def find(given: str | None, token_file: str | None = None) -> Run:
    """Return the run. Raise `ConfigError` if there is none, `NobodyServesError` if it has not ended and nobody serves.

    Wait only for a connect to each lighthouse's address.
    """
    if given is not None and is_handle(given):
        return _of_cluster(given, token_file)
    if given is not None and (addresses := _addresses(given)):
        env.enable_tls_if_https(given)
        return _answering(f"the lighthouse at {given}", None, addresses, _token(token_file, None))
    run_dir = Path(given) if given is not None else _usual()
    try:
        there = run_dir.is_dir() and any((run_dir / name).exists() for name in _OF_A_RUN)
        last = last_event(run_dir, "lighthouse") if there else None
        ended = last if last and last.get("event") == "exit" else None
        address = read_address(run_dir / LIGHTHOUSE) if there and ended is None else None
    except OSError as e:  # another user's
        raise ConfigError(f"The run directory {run_dir} can't be read ({e.strerror}).") from None
    if not there:
        why = "there is nothing of a run in it" if run_dir.is_dir() else "it does not exist"
        raise ConfigError(f"{run_dir} is no run directory: {why}. `torchx run` prints it first; or name an address.")
    if ended is not None:
        return Run(f"the run in {run_dir}", run_dir, ended=ended)
    addresses = () if address is None else (address,)
    return _answering(f"the run in {run_dir}", run_dir, addresses, _token(token_file, run_dir))


def _of_cluster(handle: str, token_file: str | None) -> Run:
    from torchft_x.launch.kubernetes.remote import Remote

    remote = Remote(handle, _token(token_file, None))
    ended = remote.ended()
    return Run(f"the job {remote.app}", None, ended=ended, remote=remote if ended is None else None)


def _usual() -> Path:
    """Return the run directory of the job that this process belongs to, else the newest below runs/."""
    inside = env.read(env.RUN_DIR)
    found = newest_run() if inside is None else Path(inside)
    if found is None:
        raise ConfigError(f"There is no run below {RUNS.absolute()}: name a run directory, or a lighthouse's address.")
    return found


def _addresses(given: str) -> tuple[Address, ...]:
    """Return the addresses in text that is no existing path, none if it is meant as a path. With a scheme it is an address."""
    try:
        return () if os.path.exists(given) else parse_addresses(given, what="address")
    except AddressError:
        if "://" in given:
            raise
        return ()


def _token(token_file: str | None, run_dir: Path | None) -> str | None:
    if token_file is not None:
        return env.read_token_file(token_file, f"--token_file {token_file}")
    beside = None if run_dir is None else run_dir / "token"
    if beside is not None and beside.exists():
        return env.read_token_file(str(beside), str(beside))
    return env.read_token()


def _answering(what: str, run_dir: Path | None, addresses: tuple[Address, ...], token: str | None) -> Run:
    for address in addresses:
        try:
            socket.create_connection(address, timeout=CONNECT).close()
        except (OSError, UnicodeError):
            continue
        return Run(what, run_dir, address, tls.use_token(token))
    tried = ", ".join(a.url for a in addresses) or "no address is written down yet"
    if run_dir is None:
        raise NobodyServesError(f"No lighthouse answers at {tried}.", None)
    raise NobodyServesError(
        f"No lighthouse of {what} answers ({tried}), and its events don't say how it ended.", run_dir
    )

"""Where the lighthouse of this job is: a given address, else the address file in the shared run directory."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.net import Address, check_resolvable, parse_address

_CONNECT_TIMEOUT = 1.0  # seconds for one look


@dataclass(frozen=True)
class Found:
    address: Address
    token: str | None = field(repr=False)
    token_file: str | None  # where the trainer reads the same token; None: it inherits TORCHFT_X_TOKEN, or has none


class Locator:
    """Looks once per call, never waits longer than a connect.

    Raises `ConfigError` (`AddressError` for the address) where waiting would not help.
    """

    def __init__(self, run_dir: Path | None, given: str | None, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._file = None if run_dir is None else run_dir / "lighthouse"
        self._token_file = None if run_dir is None else run_dir / "token"
        self._given: Address | None = None  # None: by the address file
        self.missing = ""  # what we still wait for, a clause for people
        if given is not None:
            self._given = parse_address(given, what=env.LIGHTHOUSE)
            check_resolvable(self._given, what=env.LIGHTHOUSE)
        elif run_dir is None:
            raise ConfigError(
                f"No lighthouse: set {env.LIGHTHOUSE} to its address, or --run_dir to a shared directory."
            )

    def look(self) -> Found | None:
        """The lighthouse, if it can be reached now."""
        address = self._given or self._read_file()
        if address is None:
            return None
        try:
            socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT).close()
        except OSError as e:
            # the file may be an earlier run's: it is read again at the next look
            self.missing = f"the lighthouse at {address.url} ({e.strerror or e})"
            return None
        return self._with_token(address)

    def _read_file(self) -> Address | None:
        assert self._file is not None
        try:
            text = self._file.read_text(encoding="utf-8").strip()
        except OSError:
            text = ""
        if not text:
            self.missing = f"the lighthouse's address in {self._file}"
            return None
        return parse_address(text, what=str(self._file))

    def _with_token(self, address: Address) -> Found:
        """The token of the environment; with an address file, else the one beside it (written before the address)."""
        environ = dict(self._environ)
        beside = self._token_file if self._given is None else None
        if beside is not None and not env.read(env.TOKEN, None, environ) and beside.exists():
            environ.setdefault(env.TOKEN_FILE, str(beside))
        return Found(address, env.read_token(environ), env.read(env.TOKEN_FILE, None, environ))

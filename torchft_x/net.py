"""Addresses: parsing, checking, and the host name we advertise. Standard library only."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import NamedTuple

from torchft_x import env
from torchft_x.errors import AddressError

MOST = 16
"""Addresses in a list: as `core.coalition.PLACES`."""


class Address(NamedTuple):
    """A host (name, IPv4 or IPv6 without brackets) and a port."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """``host:port`` with brackets where IPv6 needs them; what gRPC and TCPStore take."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.target}"


def parse_address(text: str, *, what: str = "address") -> Address:
    """``http://host:port``, ``host:port`` or ``[v6]:port`` as an `Address`; port 0 is allowed.

    Raises `AddressError` naming `what` (e.g. the variable it came from).
    """
    rest = text.strip()
    if "://" in rest:
        scheme, rest = rest.split("://", 1)
        if scheme not in ("http", "grpc"):
            raise AddressError(f"{what} {text!r}: scheme {scheme!r} is not understood; write http://HOST:PORT.")
    rest = rest.rstrip("/")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise AddressError(
            f"{what} {text!r} has no valid port; write http://HOST:PORT, for instance http://node1:29510."
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"{what} {text!r}: an IPv6 address needs brackets, as in http://[::1]:29510.")
    if not host or any(c.isspace() or c in "/@?#" for c in host):
        raise AddressError(f"{what} {text!r} has no valid host; write http://HOST:PORT.")
    return Address(host, int(port))


def parse_addresses(text: str, *, what: str = "address") -> tuple[Address, ...]:
    """A comma-separated list of addresses, at least one. Raises `AddressError` naming `what` and the wrong one."""
    addresses = tuple(parse_address(part, what=what) for part in text.split(","))
    for i, address in enumerate(addresses):
        if address in addresses[:i]:
            raise AddressError(f"{what} {text!r}: {address.url} is in it twice.")
    if len(addresses) > MOST:
        raise AddressError(f"{what} {text!r} names {len(addresses)} addresses; at most {MOST} are allowed.")
    return addresses


def check_resolvable(address: Address, *, what: str = "address") -> None:
    """Raise `AddressError` if the host's name is unknown. No connection is made."""
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as e:
        reason = e.strerror or str(e)
        raise AddressError(f"{what} {address.url}: the name {address.host!r} can't be resolved ({reason}).") from None


def check_any_resolvable(addresses: tuple[Address, ...], *, what: str = "address") -> None:
    """Raise `AddressError` about the first if no name is known: the host of one of several may be gone."""
    first: AddressError | None = None
    for address in addresses:
        try:
            check_resolvable(address, what=what)
            return
        except AddressError as e:
            first = first or e
    if first is not None:
        raise first


def advertise_host(argument: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The host others reach us by: the argument; TORCHFT_X_ADVERTISE_HOST; in a Slurm step our address on the way to
    the node that launched it (node names need not resolve); the own name if it resolves; else 127.0.0.1 (one machine).
    """
    given = argument or env.read(env.ADVERTISE_HOST, None, environ)
    if given:
        return given
    launcher = env.read(env.SLURM_LAUNCH_ADDRESS, None, environ)
    own = None if launcher is None else _own_address_towards(launcher)
    if own is not None:
        return own
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def _own_address_towards(address: str) -> str | None:
    """Our address on the way there, unless it is the loopback's. Nothing is sent: connecting UDP only picks a route."""
    try:
        family, *_, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.connect(target)
            own: str = s.getsockname()[0]
    except OSError:
        return None
    return None if ipaddress.ip_address(own.partition("%")[0]).is_loopback else own


def any_host() -> str:
    """The address to bind for "every interface": ``::`` where IPv6 exists (it takes IPv4 too), else ``0.0.0.0``."""
    if not socket.has_ipv6:
        return "0.0.0.0"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as s:
            s.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"

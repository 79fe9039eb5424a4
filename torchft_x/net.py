"""Parses and checks addresses, and finds the host name that this host advertises. Standard library only."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from typing import NamedTuple

from torchft_x import env
from torchft_x.errors import AddressError

MOST = 16
"""Largest number of addresses in a list."""
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # reserved for documentation: routed like any other, but unused
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_NOT_LASTING = 0x69  # flags of an IPv6 address: temporary, doubled, deprecated, tentative


class Address(NamedTuple):
    """Host (name, IPv4 or IPv6 without brackets) and port."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """``host:port``, with brackets around an IPv6 address, as gRPC and TCPStore take it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """``http://host:port``; ``https://host:port`` if this process speaks TLS (`torchft_x.tls`)."""
        return f"{'https' if env.read_tls() else 'http'}://{self.target}"


def parse_address(text: str, *, what: str = "address") -> Address:
    """Parse ``http://host:port``, ``https://host:port``, ``host:port`` or ``[v6]:port``; port 0 is allowed.

    Raise `AddressError` for any other text, with a message that names `what` (for instance, the variable).
    """
    rest = text.strip()
    if "://" in rest:
        scheme, rest = rest.split("://", 1)
        if scheme not in ("http", "https", "grpc"):
            raise AddressError(f"{what} {text!r}: scheme {scheme!r} is not understood; write http://HOST:PORT.")
    rest = rest.rstrip("/")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise AddressError(
            f"{what} {text[:300]!r} has no valid port; write http://HOST:PORT, for instance http://node1:29510."
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"{what} {text!r}: an IPv6 address needs brackets, as in http://[::1]:29510.")
    if not host or any(c.isspace() or c in "/@?#" for c in host):
        raise AddressError(f"{what} {text!r} has no valid host; write http://HOST:PORT.")
    return Address(host, int(port))


def parse_addresses(text: str, *, what: str = "address") -> tuple[Address, ...]:
    """Parse a comma-separated list of one or more addresses. Raise `AddressError` with `what` and the wrong address."""
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
    """Raise `AddressError` about the first address if no host name is known. One of several hosts may be gone."""
    first: AddressError | None = None
    for address in addresses:
        try:
            check_resolvable(address, what=what)
            return
        except AddressError as e:
            first = first or e
    if first is not None:
        raise first


def advertise_host(
    argument: str | None = None, environ: Mapping[str, str] | None = None, *, towards: str | None = None
) -> str:
    """Return the host by which others reach us: the first of these that exists (docs/schedulers.md#addresses).

    1. `argument`
    2. TORCHFT_X_ADVERTISE_HOST
    3. the address of the interface TORCHFT_X_ADVERTISE_INTERFACE
    4. in a Slurm step our address on the route to the node that launched it, in a batch script this node's
    5. our address on the route to the lighthouse (`towards`, else TORCHFT_LIGHTHOUSE), which all members reach too
    6. the own host name, if it resolves to more than the loopback
    7. our address on the route out of this network
    8. the own host name, if it resolves at all
    9. 127.0.0.1

    An address from a route is never the loopback's, and needs no name server on the other side.

    Raise `AddressError` if the interface does not exist or has no address.
    """
    given = argument or env.read(env.ADVERTISE_HOST, None, environ)
    if given:
        return given
    interface = env.read(env.ADVERTISE_INTERFACE, None, environ)
    if interface:
        return interface_address(interface)
    launcher = env.read(env.SLURM_LAUNCH_ADDRESS, None, environ) or env.read(env.SLURM_NODE_NAME, None, environ)
    own = None if launcher is None else _own_address_towards(launcher, names=True)
    lighthouse = towards or env.read(env.LIGHTHOUSE, None, environ)
    if own is None and lighthouse:
        ways = (_own_address_towards(_host_of(one), names=True) for one in lighthouse.split(","))
        own = next((a for a in ways if a is not None), None)  # of several lighthouses one may be gone
    if own is not None:
        return own
    name = socket.gethostname()
    known = _addresses_of(name)
    if any(not _is_loopback(address) for address in known):
        return name
    own = next((a for a in map(_own_address_towards, _ELSEWHERE) if a is not None), None)
    return own or (name if known else "127.0.0.1")


def is_own_address(host: str) -> bool:
    """Return whether the name or address is this host's."""
    for address in _addresses_of(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as s:
            s.bind((address, 0))  # possible for own addresses only
            return True
    return False


def interface_address(name: str) -> str:
    """Return a network interface's first IPv4 address (Linux), else its first permanent global IPv6 address.

    Raise `AddressError` if there is no such interface, or it has no such address.
    """
    what = f"{env.ADVERTISE_INTERFACE}={name}"
    try:
        known = [n for _, n in socket.if_nameindex()]
    except OSError:
        known = []
    if name not in known:
        raise AddressError(f"{what}: this machine has no such network interface, but {', '.join(known) or 'none'}.")
    address = _ipv4_of(name) or _ipv6_of(name)
    if address is None:
        raise AddressError(
            f"{what}: the interface has no IPv4 and no global IPv6 address; give it one, or set {env.ADVERTISE_HOST}."
        )
    return address


def _ipv4_of(interface: str) -> str | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            raw = fcntl.ioctl(s.fileno(), _SIOCGIFADDR, interface.encode()[:15].ljust(40, b"\0"))
    except (ImportError, OSError):
        return None
    return socket.inet_ntoa(raw[20:24])


def _ipv6_of(interface: str) -> str | None:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as f:
            rows = [line.split() for line in f]
    except OSError:
        return None
    for address, _, _, scope, flags, name in rows:
        if name == interface and int(scope, 16) == 0 and not int(flags, 16) & _NOT_LASTING:
            return str(ipaddress.IPv6Address(int(address, 16)))
    return None


def _host_of(text: str) -> str:
    """Return the host of a lighthouse's address; '' if the address is malformed, which other code reports."""
    try:
        return parse_address(text).host
    except AddressError:
        return ""


def _addresses_of(name: str) -> list[str]:
    try:
        return [str(where[0]) for *_, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _own_address_towards(address: str, *, names: bool = False) -> str | None:
    """Return our address on the route to `address`, or None if it is the loopback's or valid on one link only.

    With `names`, `address` may be a host name. Nothing is sent, because connecting UDP only picks a route.
    """
    if not address:
        return None
    try:
        flags = 0 if names else socket.AI_NUMERICHOST
        family, *_, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM, flags=flags)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.connect(target)
            own: str = s.getsockname()[0]
    except (OSError, UnicodeError):
        return None
    return None if "%" in own or _is_loopback(own) else own


def any_host() -> str:
    """Return the address to bind for all interfaces: ``::`` if IPv6 exists (it accepts IPv4 too), else ``0.0.0.0``."""
    if not socket.has_ipv6:
        return "0.0.0.0"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as s:
            s.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"


def bound(address: Address) -> socket.socket:
    """Return a socket that is bound to the address and does not listen, so that another one may. Raise OSError."""
    host = any_host() if address.host == "::" else address.host
    family = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, address.port))
    except BaseException:
        held.close()
        raise
    return held


def boot_id() -> str:
    """Return the id of this host's present boot, or '' if the system doesn't have one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read(64).strip()
    except (OSError, ValueError):
        return ""

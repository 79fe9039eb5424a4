"""Checks of the network: processes can reach each other, be reached by name, and reach the lighthouse."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchft_x import env, net, tls
from torchft_x._version import __version__
from torchft_x.address_files import lighthouse_files, read_address
from torchft_x.errors import AddressError, RefusedError, TokenError, TorchftXError
from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning
from torchft_x.launch.supervisor.locate import first_host
from torchft_x.timing import ANSWER, CONNECT

SLOW_LOOKUP = 0.5
"""Tolerated seconds of a name lookup. torch waits for one at every connect of a store, on both sides."""


def check_ports(_: Case) -> Iterator[Finding]:
    families = [name for name, host in (("IPv4", "127.0.0.1"), ("IPv6", "::1")) if _connect_to_self(host, host) is None]
    if not families:
        why = _connect_to_self("127.0.0.1", "127.0.0.1")
        yield problem("ports", f"No process here can connect to another on 127.0.0.1 ({why}); bring up the loopback.")
    else:
        yield ok("ports", f"A free port can be bound and connected to, by {' and '.join(families)}.")


def _connect_to_self(bind: str, host: str) -> str | None:
    """Listen on any port of `bind` and connect to it as `host`. Return the reason of a failure, or None."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_STREAM) as listener:
            if bind == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((bind, 0))
            listener.listen(1)
            socket.create_connection((host, listener.getsockname()[1]), timeout=CONNECT).close()
    except OSError as e:
        return e.strerror or str(e)
    return None


# --- the name others reach us by ---------------------------------------------------------------------------------------


def check_name(case: Case) -> Iterator[Finding]:
    given = env.read(env.ADVERTISE_HOST, None, case.environ)
    try:
        host = net.advertise_host(None, case.environ)
    except AddressError as e:
        yield problem("name", str(e))
    else:
        yield name_finding(host, given, socket.gethostname())


def name_finding(host: str, given: str | None, own: str) -> Finding:
    """Return the finding about the advertised `host`. `given` is the variable's value, `own` this machine's host name."""
    found_out = host not in (own, "127.0.0.1")  # by an interface or a route
    source = env.ADVERTISE_HOST if given else "the way to the others" if found_out else "the host name"
    remedy = f"set {env.ADVERTISE_HOST} to a name or address others can reach"
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:  # UnicodeError: a name that can't be one
        why = getattr(e, "strerror", None) or str(e)
        return problem("name", f"{host} ({source}) can't be resolved ({why}); {remedy}.")
    took = time.monotonic() - began
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    shown = f"{host} ({source}) is {', '.join(addresses)}"
    strange = [a for a in addresses if not _is_ours(a)]
    if strange:
        return warning("name", f"{shown}: {', '.join(strange)} is no address of this machine; {remedy}.")
    failure = _connect_to_self(net.any_host(), host)
    if failure is not None:
        return problem("name", f"{shown}, but a connect to it from here fails ({failure}); {remedy}.")
    if took > SLOW_LOOKUP:
        return warning("name", f"{shown}, and looking that up took {took:.1f} s; put it into /etc/hosts.")
    if all(a.startswith("127.") or a == "::1" for a in addresses):
        if not given and host != own:
            shown = f"{shown}, because the host name {own} can't be resolved"
        return warning("name", f"{shown}: good on this machine only. For a job over several, {remedy}.")
    return ok("name", f"{shown}, and can be connected to from here.")


def _is_ours(address: str) -> bool:
    """Return whether the address is this machine's: a socket can be bound to it. Return True also if that is undecidable."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.bind((address.split("%")[0], 0))
    except OSError as e:
        return e.errno != errno.EADDRNOTAVAIL
    return True


def check_reverse(case: Case) -> Iterator[Finding]:
    """Check lookups of names by address."""
    try:
        host = net.advertise_host(None, case.environ)
    except AddressError:
        return  # `check_name` has reported it
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    addresses = dict.fromkeys(["127.0.0.1", *(str(where[0]) for *_, where in found)])
    yield reverse_finding(list(addresses), _name_of)


def _name_of(address: str) -> None:
    try:
        socket.getnameinfo((address, 0), 0)
    except OSError:
        pass  # an address without a name is no problem


def reverse_finding(addresses: list[str], look_up: Callable[[str], None]) -> Finding:
    slowest, where = 0.0, ""
    for address in addresses:
        began = time.monotonic()
        look_up(address)
        took = time.monotonic() - began
        if took >= slowest:
            slowest, where = took, address
    if slowest <= SLOW_LOOKUP:
        return ok("reverse", f"The name of {where} is looked up by its address within {slowest * 1000:.0f} ms.")
    return warning("reverse", slow_reverse(f"took {slowest:.1f} s for {where}"))


def slow_reverse(how_slow: str) -> str:
    return (
        f"Looking up a name by its address {how_slow}, and torch does that on both sides of every connect to a store: "
        "each restart of a group stalls the others so long. Put the hosts of the job into /etc/hosts, or set "
        "RES_OPTIONS='timeout:1 attempts:1'."
    )


# --- the lighthouse ----------------------------------------------------------------------------------------------------


def check_lighthouse(case: Case) -> Iterator[Finding]:
    try:
        given, source = _expected(case)
        if given is None or given == "auto":
            yield ok("lighthouse", "None is expected to run yet: a job brings its own.")
            return
        env.enable_tls_if_https(given)
        token = tls.use_token(_token(case))
        addresses = net.parse_addresses(given, what=source)
    except TorchftXError as e:
        yield problem("lighthouse", str(e))
        return
    for address in addresses:
        yield lighthouse_finding(address, token)


def _expected(case: Case) -> tuple[str | None, str]:
    """Return the lighthouses' addresses and their source, as a job's own processes find them, or (None, ''). Raise `ConfigError`."""
    if case.lighthouse is not None:
        return case.lighthouse, "--lighthouse"
    given = env.read(env.LIGHTHOUSE, None, case.environ)
    if given is not None:
        return given, env.LIGHTHOUSE
    by_file = None if case.run_dir is None else _address_in(case.run_dir)
    if by_file is not None:
        return by_file, f"{case.run_dir}/lighthouse"
    host_in, port = env.read_lighthouse_at(case.environ) or ("", 0)
    host = first_host(env.read(host_in, "", case.environ) or "") if host_in else ""
    if host and not env.is_local_job(case.environ):
        return net.Address(host, port).target, host_in
    return None, ""


def _address_in(run_dir: Path) -> str | None:
    try:
        found = [read_address(file) for file in lighthouse_files(run_dir)]
    except OSError:
        return None
    return ",".join(address.url for address in found if address is not None) or None


def _token(case: Case) -> str | None:
    """Return the token of the environment, else that in the run directory, else None."""
    token = env.read_token(case.environ)
    beside = None if case.run_dir is None else case.run_dir / "token"
    if token is None and beside is not None and beside.exists():
        return env.read_token_file(str(beside), str(beside))
    return token


def lighthouse_finding(address: net.Address, token: str | None) -> Finding:
    where = f"The lighthouse at {address.url}"
    began = time.monotonic()
    try:
        socket.create_connection((address.host, address.port), timeout=CONNECT).close()
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or str(e)
        return problem("lighthouse", f"{where} can't be reached ({why}); is it running, and is its port open?")
    latency = (time.monotonic() - began) * 1000
    try:
        from torchft_x.rpc.status_query import lighthouse_status  # loads grpc

        status = lighthouse_status(address, token, ANSWER)
    except ImportError as e:
        return problem("lighthouse", f"It can't be asked, because grpcio or protobuf can't be loaded here: {e}.")
    except TokenError as e:
        return problem("lighthouse", str(e))
    except RefusedError:
        return problem(
            "lighthouse",
            f"{where} answers, but is none of torchft_x: perhaps torchft's own, which torchft_x's Manager can't use. "
            "Start `torchft_x lighthouse` instead; torchft's clients can use that, too.",
        )
    except TorchftXError as e:
        return problem("lighthouse", f"{where} takes connections, but does not answer as a lighthouse: {e}")
    return _described(where, status, latency)


def _described(where: str, status: dict[str, Any], latency: float) -> Finding:
    from torchft_x.rpc.transport import grpc_options

    theirs, version = status.get("wire"), status.get("version", "of an unknown version")
    if theirs is not None and theirs != grpc_options.WIRE:
        return problem(
            "lighthouse",
            f"{where} is torchft_x {version} and speaks version {theirs} of the wire, this machine's {__version__} version "
            f"{grpc_options.WIRE}; install the same torchft_x everywhere.",
        )
    members, undecided = status.get("members") or [], status.get("undecided")
    does = f"knows {len(members)} groups" if "standby" not in status else "stands by"
    text = f"{where} is torchft_x {version}, {latency:.1f} ms away, {does}"
    waits = f"; no quorum yet: {str(undecided).rstrip('.')}" if undecided else ""
    if version != __version__:
        return warning("lighthouse", f"{text}; this machine has {__version__}: install the same everywhere.")
    return ok("lighthouse", f"{text}{waits}.")

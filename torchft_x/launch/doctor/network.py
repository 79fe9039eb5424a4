"""Checks of the network: this machine can be reached by name, and can reach the lighthouse."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchft_x import env, net, tls
from torchft_x._version import __version__
from torchft_x.address_files import LIGHTHOUSE, read_address
from torchft_x.errors import AddressError, StrangerError, TokenError, TorchftXError
from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning
from torchft_x.launch.supervisor.locate import first_host
from torchft_x.timing import ANSWER, CONNECT

SLOW_LOOKUP = 0.5
"""Tolerated seconds of a name lookup. torch waits for one at every connect of a store, on both sides."""


def check_name(case: Case) -> Iterator[Finding]:
    given = env.read(env.ADVERTISE_HOST, None, case.environ)
    try:
        host = net.advertise_host(None, case.environ)
    except AddressError as e:
        yield problem(str(e))
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
        return problem(f"{host} ({source}) can't be resolved ({why}); {remedy}.")
    took = time.monotonic() - began
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    shown = f"{host} ({source}) is {', '.join(addresses)}"
    any_host = net.any_host()
    can_bind = [a for a in addresses if ":" not in a or ":" in any_host]  # nothing can be said of ::1 without IPv6
    strange = [a for a in can_bind if not net.is_own_address(a)]
    if strange:
        return warning(f"{shown}: {', '.join(strange)} is no address of this machine; {remedy}.")
    family = socket.AF_INET6 if ":" in any_host else socket.AF_INET
    try:
        with socket.create_server((any_host, 0), family=family, dualstack_ipv6=":" in any_host) as listener:
            socket.create_connection((host, listener.getsockname()[1]), timeout=CONNECT).close()
    except OSError as e:
        return problem(f"{shown}, but a connect to it from here fails ({e.strerror or e}); {remedy}.")
    if took > SLOW_LOOKUP:
        return warning(f"{shown}, and looking that up took {took:.1f} s; put it into /etc/hosts.")
    if all(a.startswith("127.") or a == "::1" for a in addresses):
        if not given and host != own:
            shown = f"{shown}, because the host name {own} can't be resolved"
        return warning(f"{shown}: good on this machine only. For a job over several, {remedy}.")
    return ok(f"{shown}, and can be connected to from here.")


def check_reverse(case: Case) -> Iterator[Finding]:
    """Check lookups of names by address."""
    try:
        found = socket.getaddrinfo(net.advertise_host(None, case.environ), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, AddressError):  # `check_name` reports it
        found = []
    yield reverse_finding(list(dict.fromkeys(["127.0.0.1", *(str(where[0]) for *_, where in found)])))


def reverse_finding(addresses: list[str]) -> Finding:
    took = {}
    for address in addresses:
        began = time.monotonic()
        with contextlib.suppress(OSError):  # an address without a name is no problem
            socket.getnameinfo((address, 0), 0)
        took[address] = time.monotonic() - began
    where = max(took, key=lambda address: took[address])
    if took[where] <= SLOW_LOOKUP:
        return ok(f"The name of {where} is looked up by its address within {took[where] * 1000:.0f} ms.")
    return warning(slow_reverse(f"took {took[where]:.1f} s for {where}"))


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
            yield ok("None is expected to run yet: a job brings its own.")
            return
        env.enable_tls_if_https(given)
        token = tls.use_token(_token(case))
        addresses = net.parse_addresses(given, what=source)
    except TorchftXError as e:
        yield problem(str(e))
        return
    tried = [(address, _connect(address)) for address in addresses]
    serves = any(isinstance(found, float) for _, found in tried)
    for address, found in tried:
        where = f"The lighthouse at {address.url}"
        if isinstance(found, float):
            yield lighthouse_finding(address, where, found, token)
        elif serves:
            yield warning(f"{where} can't be reached ({found}): it stands by, or does not run.")
        else:
            yield problem(f"{where} can't be reached ({found}); is it running, and is its port open?")


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
        found = read_address(run_dir / LIGHTHOUSE)
    except OSError:
        return None
    return None if found is None else found.url


def _token(case: Case) -> str | None:
    """Return the token of the environment, else that in the run directory, else None."""
    token = env.read_token(case.environ)
    beside = None if case.run_dir is None else case.run_dir / "token"
    if token is None and beside is not None and beside.exists():
        return env.read_token_file(str(beside), str(beside))
    return token


def _connect(address: net.Address) -> float | str:
    """Return for how many milliseconds a connect took, or why it failed."""
    began = time.monotonic()
    try:
        socket.create_connection(address, timeout=CONNECT).close()
    except (OSError, UnicodeError) as e:
        return getattr(e, "strerror", None) or str(e)
    return (time.monotonic() - began) * 1000


def lighthouse_finding(address: net.Address, where: str, latency: float, token: str | None) -> Finding:
    try:
        from torchft_x.rpc.status_query import lighthouse_status  # loads grpc

        status = lighthouse_status(address, token, ANSWER)
    except ImportError as e:
        return problem(f"It can't be asked, because grpcio or protobuf can't be loaded here: {e}.")
    except TokenError as e:
        return problem(str(e))
    except StrangerError:
        return problem(
            f"{where} answers, but is none of torchft_x: perhaps torchft's own, which torchft_x's Manager can't use. "
            "Start `torchft_x lighthouse` instead; torchft's clients can use that, too.",
        )
    except TorchftXError as e:
        return problem(f"{where} takes connections, but does not answer as a lighthouse: {e}")
    return _described(where, status, latency)


def _described(where: str, status: dict[str, Any], latency: float) -> Finding:
    from torchft_x.rpc.transport import grpc_options

    theirs, version = status.get("wire"), status.get("version", "of an unknown version")
    if theirs is not None and theirs != grpc_options.WIRE:
        return problem(
            f"{where} is torchft_x {version} and speaks version {theirs} of the wire, this machine's {__version__} version "
            f"{grpc_options.WIRE}; install the same torchft_x everywhere.",
        )
    members, undecided = status.get("members") or [], status.get("undecided")
    text = f"{where} is torchft_x {version}, {latency:.1f} ms away, knows {len(members)} groups"
    waits = f"; no quorum yet: {str(undecided).rstrip('.')}" if undecided else ""
    if version != __version__:
        return warning(f"{text}; this machine has {__version__}: install the same everywhere.")
    return ok(f"{text}{waits}.")

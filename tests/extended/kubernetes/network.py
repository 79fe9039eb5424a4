"""Addresses and links of the small cluster, all in one network namespace that plays the wire between its nodes.

Each pod has a namespace of its own and a routed link to the wire. Packets between pods, or to a service, pass through
the wire, where kube-proxy rewrites them.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

PODS, SERVICES = "10.244.0.0/16", "10.96.0.0/16"
DNS, CONTROL = "10.96.0.10", "172.31.0.100"
_GATEWAY = "169.254.1.1"  # gateway of every pod, on its own link


def node_address(number: int) -> str:
    return f"172.31.0.{number}"


def pod_address(node: int, number: int) -> str:
    return f"10.244.{node}.{number}"


def inside(pid: int) -> list[str]:
    """Return a prefix that runs a command in the network namespace of a process, and kills it with its parent."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "setpriv", "--pdeathsig", "KILL", "--"]


def ip(pid: int, *commands: str) -> None:
    """Run lines of `ip -batch` in the namespace of `pid`. Raise `RuntimeError` with the errors of `ip`."""
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        capture_output=True,
    )
    if done.returncode:
        raise RuntimeError(f"ip in the namespace of {pid}: {done.stderr.strip()}")


def lay_wire(pid: int) -> None:
    """Make the namespace of `pid` the wire of a cluster."""
    ip(
        pid,
        "link set lo up",
        f"addr add {CONTROL}/32 dev lo",
        f"addr add {DNS}/32 dev lo",
        f"route add {SERVICES} dev lo src {CONTROL}",  # so that services can be reached from the wire, too
        f"route add default dev lo src {CONTROL}",
    )
    settings = {"ip_forward": 1, "conf/all/rp_filter": 0, "conf/default/rp_filter": 0}
    script = "\n".join(f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in settings.items())
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-ec", script], check=True)


def connect(wire: int, pod: int, link: str, address: str) -> None:
    """Give the namespace of process `pod` an address and a link named `link` to the namespace of process `wire`."""
    ip(
        wire,
        f"link add {link} type veth peer name eth0 netns {pod}",
        f"addr add {_GATEWAY}/32 dev {link}",
        f"link set {link} up",
        f"route add {address}/32 dev {link}",
    )
    ip(
        pod,
        "link set lo up",
        f"addr add {address}/32 dev eth0",
        "link set eth0 up",
        f"route add {_GATEWAY} dev eth0",
        f"route add default via {_GATEWAY} dev eth0",
    )


def cut(wire: int, links: list[str]) -> None:
    """Silence links at once: no packet passes any more, so no connection is closed."""
    if links:
        ip(wire, *(f"link set {link} down" for link in links))


def remove(wire: int, links: list[str]) -> None:
    """Remove links, with the routes that lead over them. For a dead pod the kernel does so later by itself."""
    for link in links:
        with contextlib.suppress(RuntimeError):  # the kernel has removed the link
            ip(wire, f"link del {link}")


def links(wire: int, prefix: str) -> list[str]:
    """Return the names of the links whose name begins with `prefix`."""
    lines = subprocess.run(
        ["nsenter", f"--net=/proc/{wire}/ns/net", "ip", "-o", "link"], text=True, capture_output=True, check=True
    ).stdout.splitlines()
    names = [line.split(": ")[1].split("@")[0] for line in lines]
    return [name for name in names if name.startswith(prefix)]


def routed(wire: int, node: int) -> list[str]:
    """Return the names of the links over which the pods of a node are reached."""
    command = ["nsenter", f"--net=/proc/{wire}/ns/net", "ip", "-o", "-4", "route"]
    lines = subprocess.run(command, text=True, capture_output=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines if line.startswith(pod_address(node, 0).removesuffix("0"))]
    return sorted({found[found.index("dev") + 1] for found in words if "dev" in found})


def write_resolver(folder: Path, namespace: str) -> None:
    """Write the pod's /etc/resolv.conf."""
    search = f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
    (folder / "resolv.conf").write_text(f"nameserver {DNS}\nsearch {search}\noptions ndots:5\n")

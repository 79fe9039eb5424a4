"""The cluster's name server: addresses of services, and of pods that have a hostname under a headless service.

Run as ``python -m tests.extended.kubernetes.dns ADDRESS API`` (API: host, port, certificate, token as JSON). It asks
the API server for each question, so that its answers are never stale.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.extended.kubernetes.api import Api, ApiError

_DOMAIN = ["svc", "cluster", "local"]
_NO_SUCH_NAME, _BROKEN = 3, 2
_A, _IN = 1, 1


def look_up(api: Api, name: str) -> list[str] | None:
    """Return the IPv4 addresses of a name, or None if it does not exist. Raise `OSError` if the API server is away."""
    labels = name.lower().rstrip(".").split(".")
    if labels[-3:] != _DOMAIN or len(labels) not in (5, 6):
        return None
    host, service, namespace = ["", *labels[:-3]][-3:]
    try:
        at = f"/api/v1/namespaces/{namespace}"
        cluster_ip = api.get(f"{at}/services/{service}")["spec"]["clusterIP"]
        if cluster_ip != "None":
            return None if host else [cluster_ip]
        subsets = api.get(f"{at}/endpoints/{service}").get("subsets") or []
    except ApiError as e:
        if e.status == 404:
            return None
        raise ConnectionError(str(e)) from e
    found = [a for subset in subsets for a in subset.get("addresses") or []]
    return [a["ip"] for a in found if not host or a.get("hostname") == host] or None


def answer(api: Api, question: bytes) -> bytes:
    """Return the answer to one message. Raise `IndexError` or `struct.error` if the message is no question."""
    number, _flags, count = struct.unpack("!HHH", question[:6])
    if count != 1:
        raise IndexError(f"{count} questions")
    labels, at = [], 12
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode("ascii", "replace"))
        at += 1 + size
    kind, group = struct.unpack("!HH", question[at + 1 : at + 5])
    code, addresses = 0, []
    try:
        found = look_up(api, ".".join(labels))
        code = _NO_SUCH_NAME if found is None else 0
        addresses = (found or []) if (kind, group) == (_A, _IN) else []
    except OSError:
        code = _BROKEN
    head = struct.pack("!HHHHHH", number, 0x8580 | code, 1, len(addresses), 0, 0)  # an authoritative answer
    records = [struct.pack("!HHHIH", 0xC00C, _A, _IN, 1, 4) + socket.inet_aton(a) for a in addresses]
    return head + question[12 : at + 5] + b"".join(records)


def main(address: str, api: Api) -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))

    def serve(question: bytes, asker: tuple[str, int]) -> None:
        try:
            server.sendto(answer(api, question), asker)
        except (IndexError, struct.error, OSError) as e:
            print(f"no answer for {asker}: {e!r}", flush=True)

    with ThreadPoolExecutor(8) as pool:
        while True:
            pool.submit(serve, *server.recvfrom(4096))


if __name__ == "__main__":
    main(sys.argv[1], Api(*json.loads(sys.argv[2])))

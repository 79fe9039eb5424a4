"""The protocol between a meeting store and its clients: mutual proof of the store's key, then requests and answers.

    client: name, its nonce | server: its nonce, proof | client: proof, requests ...

A proof is an HMAC of both nonces with the key. The key itself is never sent here; it is part of the store's address.
Frames are a length, a number (operation or status) and fields. Every size is checked before it is used; nothing is
evaluated.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence

NAME = b"tfxstor2"
NONCE = 16  # bytes
PROOF = 32  # bytes
HELLO = len(NAME) + NONCE  # bytes of the client's first message
MAX_REQUEST = 1 << 20  # bytes; gloo publishes some hundred per rank
MAX_ANSWER = 1 << 26  # bytes; as much as a store holds
MAX_FIELDS = 1 << 16
_HEAD = struct.Struct("!IBI")  # length of the rest of the frame, number, number of fields
_SIZE = struct.Struct("!I")

# Operations. SET and APPEND have no answer.
SET, APPEND, COMPARE_SET, ADD, GET, CHECK, DELETE, COUNT = range(1, 9)
# Statuses.
DONE, TOO_LATE = 0, 1


def proof(key: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the proof of `side` (``client`` or ``server``)."""
    return hmac.digest(key, b"torchft_x store " + side + client_nonce + server_nonce, "sha256")


def pack(number: int, fields: Sequence[bytes]) -> bytes:
    parts = [x for field in fields for x in (_SIZE.pack(len(field)), field)]
    length = _HEAD.size - _SIZE.size + sum(map(len, parts))
    return b"".join([_HEAD.pack(length, number, len(fields)), *parts])


def length_of(data: bytes | bytearray | memoryview) -> int | None:
    """Return the bytes of the whole frame at the start of `data`; None if fewer than four bytes have come."""
    return None if len(data) < _SIZE.size else _SIZE.size + int(_SIZE.unpack_from(data)[0])


def unpack(frame: bytes) -> tuple[int, list[bytes]]:
    """Return the number and the fields of a whole frame. Raises ValueError if it is malformed."""
    if len(frame) < _HEAD.size:
        raise ValueError("a frame without a head")
    _, number, count = _HEAD.unpack_from(frame)
    if count > MAX_FIELDS:
        raise ValueError(f"{count} fields")
    at, fields = _HEAD.size, []
    for _ in range(count):
        if len(frame) - at < _SIZE.size:
            raise ValueError("a field is missing")
        size = int(_SIZE.unpack_from(frame, at)[0])
        at += _SIZE.size
        if len(frame) - at < size:
            raise ValueError("a field is cut off")
        fields.append(frame[at : at + size])
        at += size
    if at != len(frame):
        raise ValueError("more than its fields")
    return number, fields

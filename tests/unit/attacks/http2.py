"""The part of HTTP/2 that a hostile client needs: calls that are begun and not finished, on connections of its own."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME = 16384  # bytes of a DATA frame that every receiver must accept


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    """Encode an HPACK string literal without Huffman coding, of fewer than 16,000 bytes."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest = len(value) - 127
    return bytes([127, rest & 127 | 128, rest >> 7]) + value if rest > 127 else bytes([127, rest]) + value


def _headers(*pairs: tuple[str, str]) -> bytes:
    return b"".join(b"\x00" + _text(k.encode()) + _text(v.encode()) for k, v in pairs)


class Connection:
    """A blocking connection with time-outs. `alive` becomes False when it breaks."""

    def __init__(self, address: tuple[str, int], timeout: float = 5.0) -> None:
        self._socket = socket.create_connection(address, timeout=timeout)
        self._socket.settimeout(timeout)
        self._next = 1  # number of the next stream
        self._got = b""  # bytes received that are not a whole frame yet
        self._window = 65535  # bytes of data that the other side accepts on the connection
        self._initial = 65535  # bytes that it accepts on a new stream
        self._windows: dict[int, int] = {}  # bytes that it accepts on each stream
        self.ended: set[int] = set()  # streams that the other side has ended
        self.alive = True
        self._socket.sendall(PREFACE + _frame(_SETTINGS, 0, 0))

    def call(self, path: str, *headers: tuple[str, str]) -> int:
        """Begin a gRPC call and return its number."""
        stream, self._next = self._next, self._next + 2
        block = _headers(
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("content-type", "application/grpc"), ("te", "trailers"), *headers,
        )  # fmt: skip
        self._windows[stream] = self._initial
        self._send(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def feed(self, stream: int, length: int, *, seconds: float) -> int:
        """Send up to `length` bytes of a message that is never finished, as the other side accepts them.

        Return the number of bytes sent.
        """
        sent, deadline = 0, time.monotonic() + seconds
        while sent < length and self.alive and stream not in self.ended:
            room = min(self._window, self._windows.get(stream, 0), _FRAME, length - sent)
            if room <= 0:
                if time.monotonic() > deadline:
                    break
                self.read(0.05)
                continue
            data = b"\0" * room
            if sent == 0:
                data = (
                    b"\0" + struct.pack("!I", length + 1) + data[5:]
                )  # the announced length is one byte more than the data
            self._send(_frame(_DATA, 0, stream, data))
            self._window -= room
            self._windows[stream] -= room
            sent += room
        return sent

    def read(self, seconds: float) -> None:
        """Handle the frames that arrive within so many seconds."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(1 << 16)
            self.alive = self.alive and bool(data)
            self._got += data
        except TimeoutError:
            pass
        except OSError:
            self.alive = False
        while len(self._got) >= 9 and len(self._got) >= 9 + (size := int.from_bytes(self._got[:3], "big")):
            kind, flags, stream = struct.unpack("!BBI", self._got[3:9])
            payload, self._got = self._got[9 : 9 + size], self._got[9 + size :]
            self._take(kind, flags, stream & 0x7FFFFFFF, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == _SETTINGS and not flags & _ACK:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack("!HI", payload[i : i + 6])
                if name == 4:
                    self._windows = {s: w + value - self._initial for s, w in self._windows.items()}
                    self._initial = value
            self._send(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _RESET or (kind in (_HEADERS, _DATA) and flags & _END_STREAM):
            self.ended.add(stream)
        elif kind == _GOAWAY:
            self.alive = False

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(2.0)
            self._socket.sendall(data)
        except OSError:
            self.alive = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

"""A source of a fetch: its snapshot, and the connections to it."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from dataclasses import replace

from torchft_x.core.types import State
from torchft_x.descriptors import shut
from torchft_x.transfer.http.client import Manifest, Source, fetch_manifest


class Feed:
    """Connections to one source of a fetch. Its methods may be called from any thread. The owner must `close` it."""

    def __init__(self, source: Source) -> None:
        self.source = replace(source, opened=self._opened)
        self._manifest: Manifest | None = None  # set by `ask`
        self._lock = threading.Lock()  # guards the fields below
        self._sockets: set[socket.socket] = set()  # shut down to wake the threads that read from them
        self._idle: list[http.client.HTTPConnection] = []
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Feed {self.source.url}>"

    @property
    def manifest(self) -> Manifest:
        assert self._manifest is not None, "the source was asked for the state first"
        return self._manifest

    def ask(self, state: State) -> Manifest:
        """Ask until the source has the state, and return its manifest. Raises `TokenError` or `TransferError`."""
        self._manifest = fetch_manifest(self.source, state.step, state.committed_in)
        self.put_back(self._manifest.connection)
        return self._manifest

    def digests(self, blocks: int) -> tuple[int, ...]:
        """Return the digests of all blocks of the snapshot, which the source computes now.

        Raises `TransferError`, or a connection's error.
        """
        connection = self.connect()
        try:
            response = self.source.get(connection, f"/snapshot/{self.manifest.snapshot}/digests")
            if response.status != http.client.OK or response.length != 4 * blocks:
                raise self.source.error(
                    f"its answer ({response.status}) has {response.length} bytes for the digests of {blocks} blocks."
                )
            values: tuple[int, ...] = struct.unpack(f">{blocks}I", response.read())
        except BaseException:
            self.discard(connection)
            raise
        self.put_back(connection)
        return values

    def connect(self) -> http.client.HTTPConnection:
        """Return an idle connection if there is one, otherwise a new one. Raises OSError or `TransferError`."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.source.connect()

    def put_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for reuse. Its last answer must have been read to the end."""
        with self._lock:
            self._idle.append(connection)

    def discard(self, connection: http.client.HTTPConnection) -> None:
        """Close a connection that can't be reused."""
        with self._lock:
            if connection.sock in self._sockets:
                self._sockets.remove(connection.sock)
                shut(connection.sock)
            if connection in self._idle:
                self._idle.remove(connection)
        connection.close()

    def _opened(self, connection: socket.socket) -> None:
        with self._lock:
            if self._stopped:
                raise self.source.error("the fetch is over.")
            self._sockets.add(connection)

    def stop(self) -> None:
        """Wake the threads that read from this source, with an error, and refuse new connections."""
        with self._lock:
            self._stopped = True
            sockets = list(self._sockets)
        for s in sockets:
            shut(s)

    def close(self) -> None:
        """Close all connections, which releases the snapshot at the source."""
        self.stop()
        with self._lock:
            for s in self._sockets:
                s.close()

"""Supervisors of sidecars, as the lighthouse serves them: their streams become events of the roster, or of `StandaloneSidecars`.

Everything happens on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchft_x.core.messages import job as c
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import supervisors
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import limits
from torchft_x.rpc.transport.streams.stream import Stream


class SidecarService:
    """A stream is named by the lighthouse's key."""

    def __init__(self, feed: Callable[[c.SidecarEvent], None]) -> None:
        self._feed = feed  # to whatever decides when sidecars end
        self._streams: dict[int, tuple[Stream, str]] = {}  # those that said hello: stream, sidecar

    def __contains__(self, key: int) -> bool:
        return key in self._streams

    @property
    def streams(self) -> Iterable[Stream]:
        return [stream for stream, _ in self._streams.values()]

    def greet(self, key: int, stream: Stream, hello: pb.SupervisorHello) -> None:
        """A sidecar's supervisor has come, and been welcomed. Raises `RefusedError`."""
        if hello.group:
            raise RefusedError("A supervisor speaks for a group or for a sidecar, not for both.")
        name, host = limits.check_replica_id(hello.sidecar), limits.check_replica_id(hello.host or "?")
        self._streams[key] = (stream, name)
        self._feed(c.SidecarHere(name, host, key))

    def hear(self, key: int, up: pb.SupervisorUp) -> None:
        """A message after the hello; how its lives begin and end concerns nobody here."""
        kind = up.WhichOneof("kind")
        if kind == "done":
            self._feed(supervisors.SIDECAR_DONE.decode(up.done, sidecar=self._streams[key][1]))
        elif kind not in ("started", "exited", "ping"):
            raise RefusedError("A sidecar's supervisor sends one hello, then started, exited, done and ping.")

    def gone(self, key: int) -> None:
        """The stream has ended; of any other stream: nothing."""
        if key in self._streams:
            _, name = self._streams.pop(key)
            self._feed(c.SidecarGone(name, key))

    def stop(self, effect: c.StopSidecar) -> None:
        data = pb.SupervisorDown(stop=pb.Stop(code=0, sentence=effect.sentence)).SerializeToString()
        for stream, name in self._streams.values():
            if name == effect.sidecar:
                stream.send(data)

"""The lighthouse's service for supervisors of sidecars. Everything happens on the loop's thread.

Streams become events of the roster, or of `core.job.sidecars` if there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchft_x.core.messages import job as c
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import supervisors
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import limits
from torchft_x.rpc.transport.streams.stream import Stream


class SidecarService:
    """Service for sidecars' supervisors. The lighthouse's key identifies a stream."""

    def __init__(self, feed: Callable[[c.SidecarEvent], None]) -> None:
        self._feed = feed  # delivers an event to the machine that decides when sidecars end
        self._streams: dict[int, tuple[Stream, str]] = {}  # streams after their hello: stream, sidecar

    def __contains__(self, key: int) -> bool:
        return key in self._streams

    @property
    def streams(self) -> Iterable[Stream]:
        return [stream for stream, _ in self._streams.values()]

    def greet(self, key: int, stream: Stream, hello: pb.SupervisorHello) -> None:
        """Take the hello of a sidecar's supervisor that was welcomed. Raises `RefusedError`."""
        if hello.group:
            raise RefusedError("A supervisor speaks for a group or for a sidecar, not for both.")
        name, host = limits.check_replica_id(hello.sidecar), limits.check_replica_id(hello.host or "?")
        self._streams[key] = (stream, name)
        self._feed(c.SidecarHere(name, host, key))

    def receive(self, key: int, up: pb.SupervisorUp) -> None:
        """Take a message after the hello, and ignore starts and exits of its attempts. Raises `RefusedError`."""
        kind = up.WhichOneof("kind")
        if kind == "done":
            self._feed(supervisors.SIDECAR_DONE.decode(up.done, sidecar=self._streams[key][1]))
        elif kind not in ("started", "exited", "ping"):
            raise RefusedError("A sidecar's supervisor sends one hello, then started, exited, done and ping.")

    def gone(self, key: int) -> None:
        """Forget a stream that has ended. Ignore a stream of another service."""
        if key in self._streams:
            _, name = self._streams.pop(key)
            self._feed(c.SidecarGone(name, key))

    def stop(self, effect: c.StopSidecar) -> None:
        data = pb.SupervisorDown(stop=pb.Stop(code=0, sentence=effect.sentence)).SerializeToString()
        for stream, name in self._streams.values():
            if name == effect.sidecar:
                stream.send(data)

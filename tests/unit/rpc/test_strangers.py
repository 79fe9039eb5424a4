"""Whoever has no token: nothing of theirs is gathered, and they don't keep others out. S3, S5."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from tests.unit.attacks.http2 import Connection
from tests.unit.rpc.support import lighthouse, where
from tests.util import scaled, wait_for
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.transport import grpc_options

METHODS = [
    f"/{grpc_options.LIGHTHOUSE}/Quorum",
    f"/{grpc_options.LIGHTHOUSE}/Heartbeat",
    f"/{grpc_options.STATUS}/Status",
    f"/{grpc_options.SESSION}/Session",
    f"/{grpc_options.SUPERVISE}/Supervise",
]


@pytest.fixture
def guarded() -> Iterator[LighthouseServer]:
    with lighthouse(token="secret") as made:
        yield made


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("headers", [(), (("authorization", "Bearer other"),)])
def test_a_call_without_the_token_ends_before_its_message_is_here(
    guarded: LighthouseServer, path: str, headers: tuple[tuple[str, str], ...]
) -> None:
    """S3: 64 messages that never ended were 1 GB."""
    connection = Connection(where(guarded), scaled(5.0))
    stream = connection.call(path, *headers)

    def ended() -> bool:
        connection.read(0.05)
        return stream in connection.ended

    wait_for(ended, 5.0, "the refusal")  # though not a byte of the message was sent
    connection.close()


def test_what_is_begun_without_a_token_is_small() -> None:
    """A lighthouse that is open to everybody takes the messages it needs, and no more."""
    with lighthouse() as server:
        connection = Connection(where(server), scaled(5.0))
        stream = connection.call(f"/{grpc_options.LIGHTHOUSE}/Heartbeat")
        taken = connection.feed(stream, 32 << 20, seconds=scaled(2.0))
        wait_for(lambda: connection.read(0.05) or stream in connection.ended, 5.0, "the refusal")
        assert taken < 16 << 20  # what is under way when its length is seen
        connection.close()


def test_headers_have_a_limit(guarded: LighthouseServer) -> None:
    connection = Connection(where(guarded), scaled(5.0))
    stream = connection.call(METHODS[0], *((f"x-{i}", "x" * 4000) for i in range(3)))
    wait_for(lambda: connection.read(0.05) or stream in connection.ended or not connection.alive, 5.0, "the refusal")
    connection.close()


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(512, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(low, len(os.listdir("/proc/self/fd")) + 64), hard))
    try:
        assert grpc_options.raise_descriptor_limit() == min(
            hard if hard > 0 else grpc_options.MOST_DESCRIPTORS, grpc_options.MOST_DESCRIPTORS
        )
        assert grpc_options.raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("limit", [256, 1024, 4096, 65536])
def test_something_is_left_for_the_process_itself(limit: int) -> None:
    of_groups = (grpc_options.group_connections(limit, ranks) for ranks in (8, 9999))
    for taken in (grpc_options.lighthouse_connections(limit), *of_groups):
        assert 64 <= taken <= limit
        assert limit - taken >= min(limit // 2, grpc_options.OWN_DESCRIPTORS)
    assert grpc_options.group_connections(65536, 8) <= 65536 // 4

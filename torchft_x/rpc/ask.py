"""One question to a lighthouse, for people and tools."""

from __future__ import annotations

import json
from typing import Any

import grpc

from torchft_x.errors import RefusedError
from torchft_x.net import Address
from torchft_x.rpc import codec, wire
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.status import error_of
from torchft_x.rpc.token import check_token, metadata


def lighthouse_status(address: Address, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """What the lighthouse knows; `version` and `wire` are of its own.

    Raises `TokenError`; `RefusedError` if it is another program; `UnreachableError`, `DeadlineError`.
    """
    what = f"lighthouse at {address.url}"
    with wire.channel(address) as channel:
        call = channel.unary_unary(f"/{wire.STATUS}/Status")
        try:
            data = call(b"", timeout=timeout, metadata=metadata(check_token(token)))
        except grpc.RpcError as e:
            raise error_of(e, what) from None
    try:
        status = json.loads(codec.parse(pb.StatusReply, data, "answer").json)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise RefusedError(f"The {what} answered with something else than its status; is it another program?")
    return status

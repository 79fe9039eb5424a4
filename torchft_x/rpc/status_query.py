"""One question to a lighthouse, for people and tools."""

from __future__ import annotations

import json
from typing import Any

import grpc

from torchft_x.errors import RefusedError
from torchft_x.net import Address
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.grpc_errors import error_of
from torchft_x.rpc.transport.token import check_token, metadata


def lighthouse_status(address: Address, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """What the lighthouse knows; `version` and `transport.grpc_options` are of its own.

    Raises `TokenError`; `RefusedError` if it is another program; `UnreachableError`, `DeadlineError`.
    """
    what = f"lighthouse at {address.url}"
    with grpc_options.channel(address) as channel:
        call = channel.unary_unary(f"/{grpc_options.STATUS}/Status")
        try:
            data = call(b"", timeout=timeout, metadata=metadata(check_token(token)))
        except grpc.RpcError as e:
            raise error_of(e, what) from None
    try:
        status = json.loads(messages.parse(pb.StatusReply, data, "answer").json)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise RefusedError(f"The {what} answered with something else than its status; is it another program?")
    return status

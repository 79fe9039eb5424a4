"""What a group declares survives the wire; what exceeds a limit is refused with a sentence."""

from __future__ import annotations

from torchft_x.core import fingerprint as t
from torchft_x.core.fingerprint import Fingerprint, describe, merge
from torchft_x.rpc.codec import messages
from torchft_x.rpc.transport import grpc_options


def test_what_we_declare_is_within_the_limits() -> None:
    """The largest of everything, by as many ranks as are told apart."""
    parts = [f"{i} {'x' * 300}" for i in range(t.MAX_PARTS + 1)]
    ranks = [
        Fingerprint(tuple(describe(f"{n} {'n' * 300}", f"{rank} {'w' * 300}", parts) for n in range(17)))
        for rank in range(16)
    ]
    whole = merge(ranks)
    assert len(whole.items) == t.MAX_TRAITS
    data = messages.TRAITS.encode(whole).SerializeToString()
    assert messages.TRAITS.read(data, "fingerprint") == whole
    assert len(data) < grpc_options.MAX_CLIENT_MESSAGE / 16

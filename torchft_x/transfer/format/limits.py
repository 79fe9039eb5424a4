"""Every limit of the transfer package. A sender over one gets a `LeafError`, a receiver a `TransferError`.

They bound the cost of a broken or hostile manifest before it is refused; honest states are far below them.
"""

from __future__ import annotations

MAX_MANIFEST_BYTES = 16 << 20  # about 100,000 tensors; as Python objects up to 0.5 GB
MAX_NODES = 1 << 20  # values in one state dict, containers and keys included
MAX_DEPTH = 64  # nesting; keeps every recursive walk far from Python's own limit of 1,000
MAX_TEXT_BYTES = 4 << 20  # one str or bytes leaf; larger ones belong in a uint8 tensor
MAX_INT_BITS = 1 << 16  # one int
MAX_SAME_HASH = 64  # keys of one container; honest ones hardly ever share a hash
MAX_DIMS = 64  # the limit of torch itself
MAX_STATE_BYTES = 1 << 43  # 8 TiB in one snapshot

BLOCK_BYTES = 1 << 20  # bytes; unit of the digest and of a retry
SMALL_BLOB_BYTES = 128 << 10  # bytes; smaller tensors share a block, and reach the receiver through a scratch buffer
ALIGNMENT = 64  # bytes, of each blob inside the stream: enough for any dtype

MAX_CONNECTIONS = 64  # readers of one server at a time
MAX_STREAMS = 16  # streams of one receiver
MAX_RANKS = 1 << 20  # ranks that have written one durable checkpoint
MAX_HEAD_BYTES = 8 << 10  # a request with its headers; ours have 700, a token 512 at most
MAX_REASON_BYTES = 1024  # bytes of another process's message that we repeat

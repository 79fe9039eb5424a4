"""The protocol of the HTTP transport.

::

    GET /checkpoint/{step}/{committed_in}           -> manifest (JSON), headers X-Snapshot and X-Crc32
        header X-Wait: seconds to hold the request while the state does not exist yet
        and header X-Memory, if processes of the source's host may read the snapshot's bytes directly (shared_memory)
    GET /snapshot/{id}/{first}/{end}                 -> for each block its bytes, then its digest (big endian)
    GET /snapshot/{id}/digests                      -> the digests of all blocks, 4 bytes each (big endian)
        sent by readers that fetch from several sources: all must offer the same bytes
    GET /snapshot/{id}/held                         -> empty: this connection has held the snapshot all the time
        sent by readers that copy from memory: at the end, and as a sign of progress

    503 ask again   409 will never be served here   410 snapshot is gone   401 token   404 path
"""

from __future__ import annotations

# As long as a cache line: after a digest of 4 bytes no block would have the same alignment in the socket as in
# memory, and both copies, into the socket and out of it, would take half as long again (decision 37).
DIGEST_BYTES = 64
HOLD = 5.0  # seconds that a request is held at most; a vanished reader blocks a thread no longer than that

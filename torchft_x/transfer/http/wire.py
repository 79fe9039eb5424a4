"""What both ends of the HTTP transport agree on.

::

    GET /checkpoint/{step}/{committed_in}           -> manifest (JSON), headers X-Snapshot and X-Crc32
        header X-Wait: seconds to hold the request while the state does not exist yet
        and header X-Memory, if processes of the source's host may read the snapshot's bytes by themselves (shared_memory)
    GET /snapshot/{id}/{first}/{end}[?digest=0]     -> for each block its bytes, then its digest (big endian)
    GET /snapshot/{id}/digests                      -> the digests of all blocks, 4 bytes each (big endian)
        asked by who fetches from several sources: all must offer the same bytes
    GET /snapshot/{id}/held                         -> nothing: this connection has held the snapshot all the time
        asked by who copies it from memory: at the end, and for a sign while it moves

    503 ask again   409 will never be served here   410 snapshot is gone   401 token   404 path
"""

from __future__ import annotations

# As long as a line of the cache: behind a digest of 4 bytes no block would lie in the socket as it does in memory, and both
# copies, into the socket and out of it, would take half as long again (decision 41).
DIGEST_BYTES = 64
HOLD = 5.0  # seconds a request is held at most before it is told to ask again; a vanished reader costs no more

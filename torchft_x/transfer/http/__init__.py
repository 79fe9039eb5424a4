"""Moves a snapshot over HTTP, or through shared memory on one host.

* `transport`: `HTTPTransport`. `server`: serves snapshots. `wire`: what both ends agree on.
* `client`: asks a source, with retries. `feed`: a source of a fetch, and its connections.
* `fetch`: moves the blocks by parallel streams, from one source or from several. `work_queue`: which stream fetches which.
* `memory_copy`: copies them from shared memory. `receiver`: puts them where they belong.
"""

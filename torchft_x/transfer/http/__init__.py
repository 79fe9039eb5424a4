"""Moves a snapshot over HTTP, or through shared memory on one host.

* `transport`: `HTTPTransport`. `server`: serves snapshots. `wire`: what both ends agree on.
* `client`: asks a source, with retries. `fetch`: moves the blocks by parallel streams, or copies from shared memory.
"""

"""Moves a snapshot over HTTP, or through shared memory on one host.

* `transport`: `HTTPTransport`, and the same with torchft's other arguments. `server`: serves snapshots.
* `wire`: the protocol between both ends.
* `client`: a source of a fetch: its connections and requests, with retries.
* `fetch`: moves the blocks by parallel streams, from one source or from several. `work_queue`: assigns blocks to
  streams.
* `memory_copy`: copies the blocks from shared memory. `receiver`: writes them to their places in the state.
"""

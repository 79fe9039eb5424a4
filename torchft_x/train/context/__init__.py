"""Objects that one rank of a trainer holds.

* `context`: `RankContext`, which makes them. `failures`: errors of the current step, from any thread.
* `peer_links`: connections to the same rank of other groups. `futures`: errors and futures for the script.
* `fingerprint`: traits that this rank declares. `data_digest`: digest of the training data.
* `state_dicts`: the user's state, and when it may be read. `memory_checkpoint`: copies in the supervisor's memory.
* `committed`: parameters and optimizer state, and their comparison. `tensor_digest`: the digests it compares.
"""

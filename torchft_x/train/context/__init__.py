"""What one rank of a trainer holds.

* `context`: `RankContext`, put together here. `failures`: all that goes wrong with the step in hand, from any thread.
* `peer_links`: its connections to the same rank of other groups. `futures`: errors and futures for the script.
* `fingerprint`: what this rank says must be alike. `data_digest`: what data it trains on.
* `state_dicts`: the user's state, and when it may be read.
* `committed`: parameters and optimizer state, and how they are compared. `tensor_digest`: with what.
"""

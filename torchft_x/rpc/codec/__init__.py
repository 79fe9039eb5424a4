"""Between wire messages and values of `core`. Nothing that arrives is trusted; see `rpc.transport.limits`.

* `messages`: sessions, quorums, and torchft's messages. `ranks`: between a group's ranks and their group server.
* `supervisors`: what supervisors say and are told. `fingerprint`: what a group declares.
"""

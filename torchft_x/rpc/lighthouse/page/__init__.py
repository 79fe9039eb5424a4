"""What people see of a lighthouse and may ask of it, over HTTP and over gRPC (docs/page.md).

* `recorder`: keeps what has happened and makes the overview, at most once in a while, as bytes that all readers share.
* `orders`: kill, drain and resume, to supervisors or to a group server.
* `routes`: from a request to an answer. Pure but for the recorder and the orders.
* `guard`: which Host a request may name, who has the token, how many requests there may be.
* `http`: connections, with h11 for the protocol.
* `metrics`: the same in Prometheus' format.
* `start`: where all of it listens.
* `page.html`: the page itself, in one file.
"""

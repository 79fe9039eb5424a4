"""Streams between two processes, which stay open as long as both live.

* `session`: a client's stream, which reconnects whenever it breaks, at the next address if need be.
* `stream`: the server's side of a stream.
* `outbox`: the ordered queue of a stream's outgoing messages.
"""

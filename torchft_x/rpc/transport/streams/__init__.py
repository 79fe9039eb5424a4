"""Streams between two processes, which stay open as long as both live.

* `session`: a client's stream, made anew whenever it breaks, at the next address if need be.
* `stream`: the server's side.
* `outbox`: what is on its way on one stream, in order.
"""

"""gRPC channels, streams, tokens, limits and errors. It interprets no message but the welcome.

* `token`: checked before any handler runs. `limits`: limits on what arrives.
* `grpc_options`: service names, options, numbers of connections, listening. `grpc_errors`: our exceptions as statuses, and
  back.
* `session`: a client's stream, which reconnects whenever it breaks, at the next address if need be.
* `stream`: the server's side of a stream, and the ordered queue of outgoing messages of either side.
* `loop`: the process's one asyncio loop, and threads for callbacks that must not block it.
* `resolve`: the lighthouse addresses that a client connects to.
"""

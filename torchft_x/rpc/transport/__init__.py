"""gRPC channels, streams, tokens, limits and errors. No message has a meaning here.

* `session`: a client's stream that is made anew whenever it breaks. `stream`: the server's side. `outbox`: what is on
  its way on one stream, in order.
* `token`: checked before any handler runs. `limits`: how much may arrive. `file_limits`: how many may connect.
* `grpc_options`: names, options, listening. `grpc_errors`: our exceptions as statuses, and back.
* `loop`: the process's one asyncio loop. `notifier`: callbacks on a thread of their own.
* `resolve`: which addresses a name has.
"""

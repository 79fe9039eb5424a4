"""gRPC channels, tokens, limits and errors. No message has a meaning here.

* `token`: checked before any handler runs. `limits`: how much may arrive. `file_limits`: how many may connect.
* `grpc_options`: names, options, listening. `grpc_errors`: our exceptions as statuses, and back.
* `loop`: the process's one asyncio loop. `notifier`: callbacks on a thread of their own.
* `resolve`: which addresses a name has.

What stays open between two processes is in `transport.streams`.
"""

"""gRPC channels, tokens, limits and errors. This package does not interpret messages.

* `token`: checked before any handler runs. `limits`: limits on what arrives. `descriptor_limits`: limits on connections.
* `grpc_options`: service names, options, listening. `grpc_errors`: our exceptions as statuses, and back.
* `loop`: the process's one asyncio loop. `notifier`: callbacks on a thread of their own.
* `resolve`: the lighthouse addresses that a client connects to.

The package `transport.streams` has the streams that stay open between two processes.
"""

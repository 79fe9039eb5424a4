"""The only room that knows grpc: servers, sessions, clients, tokens.

`transport` moves bytes, `codec` turns them into values of `core`, and `group` and `lighthouse` are the shells of core's
machines: they deliver events and carry out effects.

* `coordination`: torchft's Python interface to this package: the same names, arguments, defaults and errors.
* `supervisor_client`: a supervisor's session: sends reports until they are received, and receives the order to stop.
* `status_query`: single questions and orders to a lighthouse, for people and tools.
"""

import sys
import warnings

from torchft_x import env

# gRPC reads its settings when it is loaded, so they must be set here, before any import of grpc.
if env.prepare_grpc() and "grpc" in sys.modules:
    warnings.warn(
        "grpc was imported before torchft_x with its fork handlers on: forked processes (DataLoader workers) may crash. "
        "Import torchft_x.rpc first or set GRPC_ENABLE_FORK_SUPPORT=0.",
        RuntimeWarning,
        stacklevel=2,
    )

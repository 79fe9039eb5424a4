"""The only room that knows grpc: servers, sessions, clients, tokens. See docs/design.md."""

import sys
import warnings

from torchft_x import env

# gRPC reads its settings when it is loaded, so this can't wait for a first use.
if env.prepare_grpc() and "grpc" in sys.modules:
    warnings.warn(
        "grpc was imported before torchft_x with its fork handlers on: forked processes (DataLoader workers) may crash. "
        "Import torchft_x.rpc first or set GRPC_ENABLE_FORK_SUPPORT=0.",
        RuntimeWarning,
        stacklevel=2,
    )

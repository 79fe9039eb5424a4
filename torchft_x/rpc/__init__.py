"""The only room that knows grpc: servers, sessions, clients, tokens. See docs/design.md."""

from torchft_x import env

env.quiet_grpc()  # gRPC reads its log level when it is loaded, so this can't wait for a first use

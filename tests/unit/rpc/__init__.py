import torchft_x.rpc  # noqa: F401  # sets up grpc, before any test loads that

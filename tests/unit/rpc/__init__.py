import torchft_x.rpc  # noqa: F401  # before any test loads grpc, whose settings it makes

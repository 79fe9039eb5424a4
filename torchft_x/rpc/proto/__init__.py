"""The wire's messages: `torchft.proto` is torchft's, `torchft_x.proto` ours. The ``_pb2`` modules are generated."""

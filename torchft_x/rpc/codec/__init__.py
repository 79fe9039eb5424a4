"""Between wire messages and values of `core`. Nothing that arrives is trusted; see `rpc.transport.limits`."""

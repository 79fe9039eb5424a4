"""gRPC channels, streams, tokens, limits and errors. No message has a meaning here."""

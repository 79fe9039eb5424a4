"""Side-by-side measurements of torchft_x, torchft-nightly and the machine's own limits. See docs/dev/benchmarks.md.

This package is not installed: ``./scripts/bench`` runs it from the repository. The peer's Python, which has neither
torchft_x nor grpc, also runs `trainer`, `worker`, `transfer`, `asker`, `adapter`, `models` and `lateness`.
"""

SMALL, LARGE = "small", "large"  # models: 85,002 and 25.2 million parameters

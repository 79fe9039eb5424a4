"""Side-by-side measurements of torchft_x, torchft-nightly and the machine's own limits. See docs/dev/benchmarks.md.

Not installed: run from the repository by ``./scripts/bench``. `trainer`, `worker`, `adapter` and `models` are also
run by the peer's Python, which knows neither us nor grpc.
"""

SMALL, LARGE = "small", "large"  # models: 85,002 and 25.2 million parameters

"""Room of torchft_x; see docs/design.md."""

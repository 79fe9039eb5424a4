"""Variables with the interpreters of other environments, which ``./scripts/test --extended`` makes."""

PEER_PYTHON = "TORCHFT_X_PEER_PYTHON"
"""Has torchft-nightly."""
NIGHTLY_PYTHON = "TORCHFT_X_NIGHTLY_PYTHON"
"""Has torchx-nightly."""
TRAINERS_PYTHON = "TORCHFT_X_TRAINERS_PYTHON"
"""Has transformers and lightning."""

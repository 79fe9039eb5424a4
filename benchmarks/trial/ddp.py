"""Run scripts/train_ddp.py as a trial, with the flags --pace, --until and --dump-params of `common`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, on machines without NumPy

import torch  # noqa: F401  # above modules of one's own, so that a first start can be forked

import torchft_x  # noqa: F401

# isort: split
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import train_ddp

from benchmarks.trial.common import run

if __name__ == "__main__":
    sys.exit(run(train_ddp))

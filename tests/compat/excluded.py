"""Tests of torchft's that are left out, and why: each is about the inside of torchft, and no script can tell."""

from __future__ import annotations

EXCLUDED: dict[str, dict[str, str]] = {}
"""By file and test."""

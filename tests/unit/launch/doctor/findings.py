"""Comparison of a finding with the expected one."""

from __future__ import annotations

from torchft_x.launch.doctor.runner import Finding


def check(found: Finding, level: str, *words: str) -> None:
    """Fail unless the finding has this level and all these words."""
    assert (found.level, [text for text in words if text not in found.text]) == (level, []), found

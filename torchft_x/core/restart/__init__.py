"""Decides when a lighthouse that has just started may form its first quorum."""

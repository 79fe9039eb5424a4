"""Decides whether a step counts: one rank's steps, the vote of its group, and the two-phase commit between groups."""

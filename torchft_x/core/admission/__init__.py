"""Decides whose words count: whether a member may join, and whether its job is already finished."""

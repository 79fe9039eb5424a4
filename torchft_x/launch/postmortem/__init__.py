"""Collects what explains a hang or a death, on the supervisor's host."""

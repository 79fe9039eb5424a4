"""Decides when a job is done and with which exit code, when nodes of a group start together, and when sidecars stop."""

"""Supervisors: keep a group, the lighthouse or a sidecar running, and report to the lighthouse."""

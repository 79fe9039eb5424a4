"""Faults of a whole cluster against a training job, and costs: `python -m tests.extended.kubernetes.faults.run`."""

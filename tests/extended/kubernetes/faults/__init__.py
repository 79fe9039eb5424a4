"""Faults of a whole cluster against a job that trains: what each costs. `python -m tests.extended.kubernetes.faults.run`."""

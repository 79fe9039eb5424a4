"""Programs that produce the evidence in docs/: faults on real jobs, checks from outside, and measurements.

Run from the repository: ``python -m benchmarks.evidence.NAME``.
"""

"""Faults against a running job, written into its events (docs/operate.md#break-it-on-purpose).

* `schedule`: which faults, when, and whom they hit: pure, a function of a seed and of who is alive.
* `place`: what a scheduler must be able to do so that its jobs can be struck. `local`: processes of this host.
* `runner`: carries a schedule out.
"""

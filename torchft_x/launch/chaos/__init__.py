"""Injects faults into a running job, and writes them into its events (docs/operate.md#break-it-on-purpose).

* `schedule`: chooses kinds, times and victims of faults, over an interface that each scheduler implements. Pure.
* `local`: processes of this host. `runner`: carries out a schedule.
"""

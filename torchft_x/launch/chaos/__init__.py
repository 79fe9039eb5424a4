"""Injects faults into a running job, and writes them into its events (docs/operate.md#break-it-on-purpose).

* `schedule`: chooses kinds, times and victims of faults. Pure: a function of a seed and of the living processes.
* `targets`: the interface for each scheduler. `local`: processes of this host.
* `runner`: carries out a schedule.
"""

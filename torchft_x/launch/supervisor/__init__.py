"""Supervisors: keep a group, the lighthouse or a sidecar running, and report to the lighthouse.

* `base`: what every supervisor does: start, watch, start again, leave no process behind; begin here.
* `group`, `lighthouse`, `sidecar`: the three kinds. `lighthouse_role`: the lighthouse as a role of a job.
* `coordination`: who begins a group's lives: its one supervisor, or all its nodes together.
* `config`: what they must know, and what workers get of it. `locate`: where the lighthouse is. `reports`: what it is told.
  `requests`: what ends a supervisor, and what a person has asked of its group.
"""

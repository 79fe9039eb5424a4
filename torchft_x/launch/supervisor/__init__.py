"""Supervisors: keep a group, the lighthouse or a sidecar running, and report to the lighthouse.

* `base`: common to all supervisors: start, watch, restart, leave no process behind. Begin reading here.
* `group`, `lighthouse`, `sidecar`: the three kinds.
* `coordination`: starts a group's attempts, from its one supervisor or from all its nodes together.
* `config`: a supervisor's settings, and the workers' environment made from them. `locate`: finds the lighthouse and
  connects to it. `requests`: requests to stop.
"""

"""One life of a group's workers, started cold or forked from a warm parent.

* `attempt`: the life: its workers and their store, until no process of it is left. `attempt_spec`: what it starts with.
* `cold_start`: starts new processes. `warm_client`: asks the warm parent for processes. `warm_server`: the warm parent, which
  has imported a worker's modules and forks workers. `warm_worker`: turns a forked process into a worker.
* `warm_rules`: decides when a life may be forked, and which modules are imported before. `lives_file`: a
  supervisor's reports to its parent.
"""

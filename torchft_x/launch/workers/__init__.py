"""One attempt of a group's workers, started cold or forked from a warm parent, and evidence of its deaths and hangs.

* `attempt`: an attempt: its workers, started cold or forked, and their store, until no process is left.
* `warm_client`: asks the warm parent for processes. `warm_server`: the warm parent, which
  has imported a worker's modules and forks workers. `warm_worker`: turns a forked process into a worker.
* `warm_rules`: decides when an attempt may be forked, and which modules are imported before. `attempts_file`: a
  supervisor's report to its parent and to the supervisor that replaces it.
* `collector`: watches the workers, and collects evidence without delaying the training and the restarts. `probe_worker`: reads
  one worker's status and stacks, or the kernel's view of it.
"""

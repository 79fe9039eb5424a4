"""One life of a group's workers, started cold or forked from a warm parent.

* `attempt`: the life: its workers and their store, until no process of it is left.
* `cold_start`: new processes. `warm_client`: asks the warm parent for them. `warm_server`: the warm parent, which has
  imported what a worker imports. `warm_worker`: what a forked process does to become one.
* `warm_rules`: when a life may be forked, and what is imported before. `save_copies`: the process that saves what a supervisor
  holds of its workers, when none is started again.
"""

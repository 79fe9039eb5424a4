"""Processes of one host.

* `process_tree`: who descends from whom, and making sure that none is left. `shim`: dies with whoever started it.
* `environment`: what a program finds in its environment. `group_store`: the store behind MASTER_ADDR. `checkpoint_memory`:
  memory that outlives the workers.
* `output`: what workers print, to the supervisor's own output and to a file.
* `restarts`: when a group is started again, and when not. `hangs`: when only an end helps. `stopped`: who is stopped.
"""

"""Processes of one host.

* `process_tree`: a process's descendants, how they ended, and killing them all. `shim`: a program that dies with its parent.
* `environment`: environment variables of workers. `group_store`: the store behind MASTER_ADDR. `checkpoint_memory`:
  memory that outlives the workers. `devices`: accelerators of this machine, and each replica's.
* `output`: passes the workers' output on to the supervisor's own output and to a file.
* `restarts`: decides whether a group is restarted. `hangs`: detects stopped, stalled and hung workers.
"""

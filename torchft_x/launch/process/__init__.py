"""Processes of one host.

* `process_tree`: a process's descendants, how they ended, and killing them all. `shim`: a program that dies with its parent.
* `environment`: environment variables of workers. `group_store`: the store behind MASTER_ADDR. `checkpoint_memory`:
  memory that outlives the workers. `fence`: stops a start that was superseded elsewhere.
* `output`: passes the workers' output on to the supervisor's own output and to a file.
* `restarts`: decides whether a group is restarted. `hangs`: detects hung groups. `stopped`: detects stopped workers.
"""

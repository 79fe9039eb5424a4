"""Failover from one lighthouse to the next: the shell of `core.lighthouse.lease`.

* `journal`: the state for the next lighthouse, written before it is sent to any client (R8c).
* `lease`: decides which of several lighthouses serves, and how long. `lease_directory`: the lease's register, the name
  of one file. `lease_journal`: a journal for each epoch beside it.
* `standby`: waits for the lease, and logs who holds it until then.
"""

"""From one lighthouse to the next: the shell of `core.restart`.

* `journal`: what the next lighthouse must know, written before it is said (R8c).
* `lease`: of several lighthouses, which one serves, and how long. `lease_directory`: where that is written, one file
  name. `lease_journal`: a journal for each epoch beside it.
* `standby`: takes the lease, and answers whoever comes before that.
"""

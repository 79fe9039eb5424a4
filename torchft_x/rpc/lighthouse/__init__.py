"""The lighthouse's process.

* `main`: ``torchft_x lighthouse``. `server`: runs `core.lighthouse.machine.Lighthouse`: sessions, probes, clock.
* `supervisor_service`, `node_service`, `sidecar_service`: supervisors of groups, of nodes, of sidecars.
* `torchft_service`: torchft's clients: unary calls, each answered by the next quorum.
* `journal`: what the next lighthouse must know, written before it is said (R8c). `finished_supervisors`: those that are
  done and gone, for the next lighthouse.
* `lease`: of several lighthouses, which one serves, and how long. `lease_directory`: where that is written, one file
  name. `lease_journal`: a journal for each epoch beside it. `standby`: what the others answer until they have the lease.
* `probe`: does somebody still listen at a member's address?
* `log`: what a person reads on stderr.
"""

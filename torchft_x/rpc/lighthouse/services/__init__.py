"""Supervisors and torchft's clients, as the lighthouse serves them: streams and calls become events of core's machines.

* `supervisor_service`: every supervisor, handed on by what it says it is. `node_service`: those of groups over several
  nodes. `sidecar_service`: those of sidecars.
* `finished_supervisors`: those that are done and gone, in the journal for the next lighthouse.
* `torchft_service`: torchft's clients: unary calls, each answered by the next quorum.
"""

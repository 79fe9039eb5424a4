"""The lighthouse's services for supervisors and torchft's clients: streams and calls become events of core's machines.

* `supervisor_service`: all supervisors; it forwards those of groups over several nodes to `node_service`, and those of
  sidecars to `sidecar_service`.
* `groups_file`: reads the file that names a job's groups.
* `finished_supervisors`: records finished supervisors in the journal for the next lighthouse.
* `torchft_service`: torchft's clients: unary calls, each answered by the next quorum.
"""

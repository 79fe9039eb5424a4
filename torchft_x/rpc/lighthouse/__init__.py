"""The lighthouse's process.

* `main`: ``torchft_x lighthouse``. `server`: runs `core.lighthouse.machine.Lighthouse`: sessions, torchft's unary calls,
  probes, clock, log.
* `probe`: checks whether a process still listens at a member's address.
* `supervisor_service`: all supervisors: of groups on one node and on several, and of sidecars; those that have finished
  are in the journal, for the next lighthouse.

The package `failover` has the state for the next lighthouse and the choice of the one that serves: journal, lease,
standby. The package `page` is for people.
"""

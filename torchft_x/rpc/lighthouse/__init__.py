"""The lighthouse's process.

* `main`: ``torchft_x lighthouse``. `server`: runs `core.lighthouse.machine.Lighthouse`: sessions, probes, clock, log.
* `probe`: checks whether a process still listens at a member's address.
* `supervisor_service`: all supervisors: of groups on one node and on several, and of sidecars.
* `finished_supervisors`: finished supervisors in the journal, for the next lighthouse.
* `torchft_service`: torchft's clients: unary calls, each answered by the next quorum.

The package `failover` has the state for the next lighthouse and the choice of the one that serves: journal, lease,
standby. The package `page` is for people.
"""

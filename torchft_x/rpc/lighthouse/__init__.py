"""The lighthouse's process.

* `main`: ``torchft_x lighthouse``. `server`: runs `core.lighthouse.machine.Lighthouse`: sessions, probes, clock.
* `probe`: checks whether a process still listens at a member's address.
* `log`: the lines on stderr that people read.

Its sub-packages, bottom up::

    failover   the state for the next lighthouse, and the choice of the one that serves: journal, lease, standby
    services   streams and calls of clients that hold no session: supervisors, and torchft's clients
"""

"""The lighthouse's process.

* `main`: ``torchft_x lighthouse``. `server`: runs `core.lighthouse.machine.Lighthouse`: sessions, probes, clock.
* `probe`: does somebody still listen at a member's address?
* `log`: what a person reads on stderr.

Below it, bottom up::

    failover   what the next lighthouse goes on with, and which of several serves: journal, lease, standby
    services   the streams and calls of those that hold no session: supervisors, and torchft's clients
"""

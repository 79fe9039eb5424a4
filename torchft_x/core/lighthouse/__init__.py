"""Decides who trains together and how far they may run. `machine.Lighthouse` is the entry; the rest are its parts.

* `next_quorum`: what is waited for, when the next quorum is issued, and what a new lighthouse goes on with.
* `grants`: how many steps the members may run without asking (R5, R7).
* `loss`: marks a member lost, tells the others, and probes those that somebody suspects.
* `stragglers`: leaves out a member that lives and does not come (R20).
* `planned_pauses`: silences that were announced.
* `wait_notices`: tells those that wait what they wait for.
* `journal_writer`: what the next lighthouse must know, as it changes (R8c).
* `status`: all of it as JSON, for people.

What a lighthouse knows of its members is in `core.membership`; whether a quorum may form in `core.quorum`.
"""

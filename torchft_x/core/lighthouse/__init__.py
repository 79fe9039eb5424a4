"""Decides who trains together and how far they may run. `machine.Lighthouse` is the entry; the rest are its parts.

* `next_quorum`: what is waited for, when the next quorum is issued, and what a new lighthouse takes over.
* `grants`: how many steps the members may run without asking (R5, R7).
* `loss`: marks a member lost, tells the others, and probes suspected members.
* `stragglers`: leaves out a member that lives but does not ask (R20).
* `planned_pauses`: announced silences.
* `wait_notices`: tells waiting members what they wait for.
* `journal_writer`: what the next lighthouse must know, as it changes (R8c).
* `status`: the lighthouse's state as JSON, for people.

What a lighthouse knows of its members is in `core.membership`; whether a quorum may form in `core.quorum`.
"""

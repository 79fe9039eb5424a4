"""Decides who trains together and how far they may run. `machine.Lighthouse` is the entry; the rest are its parts.

* `next_quorum`: what is waited for, when the next quorum is issued, and what a new lighthouse takes over.
* `grants`: how many steps the members may run without asking (R5, R7).
* `waiting`: which members are not waited for, because they are gone (R5) or do not ask (R20), what is said then,
  and what members that ask are told; announced pauses.
* `journal_writer`: what the next lighthouse must know, as it changes (R8c).
* `recover`: when a lighthouse that has just started may form its first quorum (R8). A journal spares the wait.
* `lease`: which of several lighthouses serves, and until when it may send anything.
* `status`: the lighthouse's state as JSON, for people.

What a lighthouse knows of its members is in `core.membership`; whether a quorum may form in `core.quorum`.
"""

"""Holds what the lighthouse knows: its members, their supervisors, the current quorum, and when silence means death.

* `record`: `MemberRecord`: whether a member is here, lost, fenced or over. The last three are easily mixed up.
* `members`: `MemberTable`: all records, their sessions and attempts, and every change of who is lost.
* `supervisors`: what supervisors report about the members that they watch over.
* `failure_detector`: when silence means that a member is gone, and the reason.
* `current_quorum`: `QuorumState`: the present quorum, the members that have asked for the next one, the ids.
* `config`: the lighthouse's validated settings.
"""

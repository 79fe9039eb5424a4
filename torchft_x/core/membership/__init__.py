"""What the lighthouse knows: its members, their supervisors, the current quorum, and when silence means death.

* `members`: `MemberTable`: who is here, who is lost, who is fenced, who is over. Three of these are easily mixed up.
* `supervisors`: what supervisors say about the members they watch over.
* `failure_detector`: when silence means that a member is gone: what is known of it goes in, a reason comes out.
* `current_quorum`: `QuorumState`: the present quorum, who has asked for the next one, the ids.
* `config`: the lighthouse's settings, checked.
"""

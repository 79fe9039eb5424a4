"""Copies state between groups.

* `state_exchange`: offers this rank's state to members that are behind, and fetches the state if this rank is behind
  (R17). Healers are waited for while their copies progress.
* `own_copy`: makes copies in the supervisor's memory between two steps, and loads one when an attempt begins.
* `rehearsal`: a newcomer's first step, made before it asks for a quorum, and dropped.
"""

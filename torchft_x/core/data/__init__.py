"""Decide which samples each group trains on in a step, so that each sample is committed exactly once per epoch (I10).

All are pure functions of values that every group holds, so no message is needed.

* `permutation`: the order of an epoch's samples. `state`: the part of an epoch that is not committed yet, and
  the same of logical streams. `ranges`: arithmetic of ranges.
* `deal`: shares a step's slots out among the groups, also among those that train apart.
* `options`: the options of the data, equal in all groups. `reduction_tree`: the fixed order of a step's sums.
"""

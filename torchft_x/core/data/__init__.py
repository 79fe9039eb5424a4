"""Decide which samples each group trains on in a step, so that each sample is committed exactly once per epoch (I10).

`permutation` orders the samples of an epoch, `state` has the part of an epoch that is not committed yet, and `deal` shares
a step's slots out among the groups. All are pure functions of values that every group holds, so no message is needed.
"""

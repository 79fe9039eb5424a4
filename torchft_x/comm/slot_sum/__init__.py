"""All-reduce in a fixed order: the bits of the result depend on the slots only, not on their division among members.

* `sums`: a member's own sums over nodes of the reduction tree. `reduce`: the rest of the tree, over all members.
"""

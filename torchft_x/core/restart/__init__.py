"""Decides when a lighthouse that has just started may form its first quorum (R8).

* `recover`: the only lighthouse of its groups: from the journal of the one before, and from what members report.
* `standby`: one of several: from what members report, and only with those that it needs.
"""

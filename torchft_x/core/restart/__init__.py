"""Decides when a lighthouse that has just started may begin, and when it may form its first quorum (R8).

* `recover`: from the journal of the one before, and from what members report.
* `lease`: which of several lighthouses serves, and until when it may send anything.
"""

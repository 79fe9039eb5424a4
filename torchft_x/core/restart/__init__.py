"""Decides when a lighthouse that has just started may begin, and when it may form its first quorum (R8).

* `recover`: whether to begin, take a quorum over or wait, from what members report. A journal spares the wait.
* `lease`: which of several lighthouses serves, and until when it may send anything.
"""

"""Decides for one replica group: what it asks the lighthouse for, what it holds, and how long it waits.

* `machine`: `Group`, which the group server runs; begin here.
* `phase`: its phases, the ways between them, and the story of how it came where it is.
* `join`: one join out of the asks of all ranks.
* `lease`: the quorum that the group holds, its grant and its lease (R7, R11, R16).
* `quorum_deadline`: how long a rank waits for a quorum when its user has not said so; the clock stands still while the
  lighthouse is away.
* `lighthouse_choice`: which of several lighthouses a client tries, and when it leaves one for the next.
"""

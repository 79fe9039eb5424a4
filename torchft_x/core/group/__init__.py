"""Decisions of one replica group: what it asks the lighthouse for, which quorum it holds, and how long it waits.

* `machine`: `Group`, which the group server runs; begin here.
* `join`: how the asks of all ranks are merged into one join.
* `lease`: the quorum that the group holds, its grant and its lease (R7, R11, R16).
* `quorum_deadline`: how long a rank waits for a quorum.
* `reconnect`: how soon a client without a session tries a lighthouse again.
"""

"""The supervisor's connections to the lighthouse.

* `client`: to one lighthouse: reports that arrive in the end, and the order to stop.
* `fanout_client`: to several: each is told everything, so that each has the proof of a death.
"""

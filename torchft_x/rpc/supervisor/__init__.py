"""The supervisor's connection to the lighthouse.

* `client`: reports that arrive in the end, and the order to stop.
"""

"""The supervisor's connection to the lighthouse.

* `client`: sends reports until they are received, and receives the order to stop.
"""

"""The votes inside a group and between groups, on sockets of their own.

* `ranks`: each rank of a group sends its vote to rank 0, and receives the decision and how the next step begins.
* `all_min`: the vote between the groups, an element-wise minimum of a few integers. `mesh`: the connections of one
  set of members.
* `handshake`: a caller sends its rank, and proves that it knows the listener's secret.
"""

"""The votes, on sockets of their own.

* `ranks`: the ranks of a group: each tells rank 0, and hears what is decided and how the next step begins.
* `all_min`: the groups: the element-wise minimum of a few integers. `mesh`: the connections of one set of members.
* `handshake`: who calls says who it is, and that it knows the secret.
"""

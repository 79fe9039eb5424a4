"""The store where the members of a new process group find each other.

* `create`: makes a store, and clients of it, from an address. `server`, `client`: ours, with a key that both prove to
  know.
* `table`: what a store holds, within limits, without sockets. `wire`: the bytes between.
* `sockets`: finds a process's own sockets and shuts them down, which releases a running gloo collective.
"""

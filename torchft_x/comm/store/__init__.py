"""The store where the members of a new process group find each other (rendezvous).

* `create`: creates a store, and clients of it, from an address. `server`: our own store, in which both sides prove that
  they know its key. `connection`: a connection to it, or to torch's. `client`: what torch takes as a store.
* `table`: a store's keys and values, within limits, without sockets. `wire`: the protocol between server and client.
"""

"""Process groups on gloo that are rebuilt for each quorum and aborted within milliseconds.

* `group`: `ProcessGroupGloo`. `membership`: one set of members, from one ``configure`` to the next.
* `device`: listening sockets with their event loop, created once and reused; shuts their connections.
"""

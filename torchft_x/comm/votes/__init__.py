"""The votes on sockets of their own: between a group's ranks, and the minimum over all groups."""

"""The store where members of a new process group find each other, its client, and its wire format."""

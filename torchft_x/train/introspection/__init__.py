"""What the supervisor sees of a trainer: its status in shared memory, and stacks on request."""

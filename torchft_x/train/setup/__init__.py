"""From arguments and environment to a connected rank."""

"""All-reduce and reduce-scatter with 8 or 4 bits per value."""

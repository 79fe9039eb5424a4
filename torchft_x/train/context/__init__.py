"""What one rank of a trainer holds: its connections, failures, waits, buckets, fingerprint and state dicts."""

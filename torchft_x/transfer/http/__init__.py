"""Moves a snapshot over HTTP, or through shared memory on one host."""

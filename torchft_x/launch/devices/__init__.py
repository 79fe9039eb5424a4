"""Finds this machine's accelerators, and assigns them to replica groups."""

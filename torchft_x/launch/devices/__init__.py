"""Finds this machine's accelerators (`accelerators`), and assigns them to replica groups (`assignment`)."""

"""Copies state between groups: offers a snapshot, fetches one, and rehearses a newcomer's first step."""

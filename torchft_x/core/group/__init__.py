"""Decides for one replica group: what it asks the lighthouse for, what it holds, and how long it waits."""

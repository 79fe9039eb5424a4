"""Processes of one host: their environment, output, tree, restarts, and evidence that they hang."""

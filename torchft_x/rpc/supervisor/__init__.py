"""The supervisor's connections to the lighthouse."""

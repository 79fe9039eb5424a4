"""What the lighthouse knows: its members, their supervisors, the current quorum, and when silence means death."""

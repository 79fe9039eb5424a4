"""Pure rules of quorums: when one may form, which older ones must be followed, and where a history forks."""

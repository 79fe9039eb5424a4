"""Process groups on gloo that are rebuilt for each quorum and released within milliseconds."""

"""One attempt of a group's workers, started cold or forked from a warm parent."""

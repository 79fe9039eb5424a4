"""One training step: quorum, reductions, votes, and what becomes of a step that fails."""

"""LocalSGD, DiLoCo and Streaming DiLoCo, with groups of one size or of several."""

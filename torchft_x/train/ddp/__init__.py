"""Gradients averaged while backward runs: replicated (DDP) and sharded (FSDP2) models."""

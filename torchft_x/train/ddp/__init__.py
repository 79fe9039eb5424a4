"""Gradients averaged while backward runs: replicated (DDP) and sharded (FSDP2) models.

* `wrapper`: `DistributedDataParallel`. `hsdp`: `HybridShardedDataParallel`. `reducer`: what both do in backward.
* `gradient_steps`: what reduces for them: the Manager's loop of steps, or a stand-in for a Manager.
* `buckets`: where each gradient lies in what is reduced. `shards`: what one rank holds of a sharded tensor.
* `sharded_state`: state of a sharded model, for a heal. `buffers`: tells once that buffers aren't exchanged.
* `fingerprint`: declares the model, so that groups that differ are refused.
"""

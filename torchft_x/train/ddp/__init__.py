"""Averages gradients while backward runs, for replicated (DDP) and sharded (FSDP2) models.

* `wrapper`: `DistributedDataParallel`. `hsdp`: `HybridShardedDataParallel`. `reducer`: the work of both in backward.
* `gradient_steps`: the object that reduces for them: the Manager's step loop, or a stand-in for a Manager.
* `buckets`: the place of each gradient in the flat buffers. `shards`: a rank's part of a sharded tensor.
* `sharded_state`: state of a sharded model, for a heal. `buffers`: warns once that buffers aren't exchanged.
* `trainable`: detects parameters that were unfrozen, added or replaced after wrapping.
* `fingerprint`: declares the model, so that groups that differ are refused.
"""

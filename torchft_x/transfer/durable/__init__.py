"""Checkpoints that outlive the job, on any file system of fsspec. No pickle.

A checkpoint is a folder below a URL. Each rank of one group writes its shard. Rank 0 waits until all shards exist and
writes the manifest, and only then is the checkpoint complete::

    URL/step-00000100.WRITER/shard-00000.data    the bytes that rank 0 holds
                             shard-00000.json    which slices of which tensors those are, and a digest of each block
                             shard-00001.data ...
                             manifest.json       the state's tree, and the sha256 of each shard's index; written last

Any number of ranks can read it: each reads the slices it needs.

* `store`: the only file that uses fsspec. `names`: the names of the folders, and which may be removed. Pure.
* `sealed`: index and manifest, and their checks. `pieces`: the slice that a rank holds, and whether all slices
  together are the whole. `shard`: one rank's state, frozen.
* `writer`, `reader`: write and read a checkpoint.
* `catalog`: lists the checkpoints below a URL. `claim`: the file that says which job writes there.
"""

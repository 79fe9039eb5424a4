"""Checkpoints that outlive the job, on any file system of fsspec. No pickle.

A checkpoint is a folder below a URL. Each rank of one group writes its shard; rank 0 waits until all are there and
writes the manifest, and only then is the checkpoint complete::

    URL/step-00000100.WRITER/shard-00000.data    the bytes of what rank 0 holds
                             shard-00000.json    which slices of which tensors that is, and a digest of each block
                             shard-00001.data ...
                             manifest.json       the state's tree, and the sha256 of each shard's index; written last

Any number of ranks can read it: each reads the slices it needs.

* `store`: the only file that knows fsspec. `names`: what the folders are called, and which may go. Pure.
* `sealed`: index and manifest, and what is believed of them. `pieces`: which slice a rank holds, and whether all of
  them are the whole. `shard`: one rank's state, frozen.
* `writer`, `reader`: the two ways.
"""

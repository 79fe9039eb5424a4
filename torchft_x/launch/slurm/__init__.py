"""Jobs on Slurm whose groups are jobs of their own: the scheduler `slurm_ft`, below its TorchX face (launch/plugin/slurm.py).

* `controller`: Slurm's own commands. `script`: the batch scripts. `options`: what ``-cfg`` takes. `checks`: before anything is
  queued. `submit`: all parts, or one anew. `store`: the manifest in the run directory. `look`: what is known of a job.
* `watch`: what starts again the parts that were lost, beside the lighthouse and the first groups.
* `commands`: ``torchft_x cancel`` and ``scale`` for a run directory of Slurm's. `chaos`: ``torchft_x chaos`` for one.
"""

"""Jobs on Slurm whose groups are jobs of their own: the scheduler `slurm_ft`, below its TorchX face (launch/plugin/slurm.py).

* `controller`: Slurm's own commands. `script`: the batch scripts. `options`: what ``-cfg`` takes. `build`: from an app to scripts.
* `checks`: before anything is queued. `launch`: a whole job. `submit`: some of its parts, or one anew.
* `store`: the manifest in the run directory, and what the lighthouse is told there. `look`: what is known of a job.
* `commands`: ``torchft_x cancel`` and ``scale`` for a run directory of Slurm's.
* `watch/`: what starts again the parts that were lost, beside the lighthouse and the first groups.
"""

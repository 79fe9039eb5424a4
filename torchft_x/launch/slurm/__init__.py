"""Scheduler `slurm_ft`: jobs whose replica groups are Slurm jobs of their own. Its TorchX side is launch/plugin/slurm.py.

* `controller`: runs Slurm's commands. `script`: batch scripts. `options`: the options of ``-cfg``. `build`: scripts from an app.
* `submit`: checks and submits a whole job, or parts of one, and cancels it.
* `store`: the manifest and the lighthouse's list of groups, in the run directory. `status`: status of jobs.
* `commands`: ``torchft_x cancel`` and ``scale`` for a run directory of slurm_ft.
* `watch/`: watchers beside the lighthouse and the first groups, which restart lost parts.
"""

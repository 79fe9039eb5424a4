"""``torchft_x slurm-watch``: restarts the lost parts of a slurm_ft job, while the job lasts.

* `watcher`: asks Slurm and the lighthouse, and has `launch.slurm.rules.restart` decide. `action_runner`: carries out the decisions.
* `again`: a batch script's command ahead of its time limit. `end`: its command after the lighthouse has ended.
"""

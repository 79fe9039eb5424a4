"""``torchft_x slurm-watch``: restarts the lost parts of a slurm_ft job, while the job lasts.

* `watcher`: asks Slurm and the lighthouse, has `launch.slurm.rules.restart` decide, and carries out the decisions.
* `script_commands`: a batch script's commands: submit a part anew, end the job.
"""

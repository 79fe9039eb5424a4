"""``torchft_x slurm-watch``: starts again what a job of slurm_ft has lost, while the job lasts.

* `watcher`: asks Slurm and the lighthouse, and has `core.slurm.restart` decide. `errands`: what is done then.
"""

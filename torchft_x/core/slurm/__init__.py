"""What Slurm says of a job's parts, what that means, and what is to be done. Pure: text and values in, values out.

* `queue`: rows of ``squeue``. `state`: what they mean for a replica and for the job. `manifest`: which jobs are which parts.
* `restart`: which parts are started again; `ending` says what the end of one means, `actions` are its values.
* `turn`: which of several watchers asks Slurm.
"""

"""What Slurm says of a job's parts, and what that means. Pure: text and values in, values out.

* `queue`: rows of ``squeue``. `state`: what they mean for a replica and for the job. `manifest`: which jobs are which parts.
"""

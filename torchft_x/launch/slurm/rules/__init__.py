"""Rules for a job's parts on Slurm: parse Slurm's answers, derive states, decide on restarts. Pure: text and values only.

* `queue`: rows of ``squeue``. `state`: states of replicas and of the job. `manifest`: the Slurm jobs of a job's parts.
* `restart`: decides on restarts of parts. `values`: its memory of each part, and the decisions.
"""

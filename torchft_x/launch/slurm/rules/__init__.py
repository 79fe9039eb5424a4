"""Rules for a job's parts on Slurm: parse Slurm's answers, derive states, decide on restarts. Pure: text and values only.

* `queue`: rows of ``squeue``. `state`: states of replicas and of the job. `manifest`: the Slurm jobs of a job's parts.
* `restart`: decides on restarts of parts. `actions`: the decisions' values. `memory`: a watcher's memory of a part.
* `election`: elects the watcher that asks Slurm.
"""

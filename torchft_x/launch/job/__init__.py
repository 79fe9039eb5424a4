"""Requested jobs, validated and rendered as TorchX apps.

* `build`: the functions that components call. `job`: validated parameters. `app`: renders them.
* `parse`: parses parameters. `checks`: checks the file system before anything starts. `run_claim`: a run directory's owner.
* `index`: the list of a user's jobs. `states`: the states of a job. `health`: whether a host may be used.
"""

"""Requested jobs, validated and rendered as TorchX apps.

* `build`: the functions that components call. `job`, `lighthouse_job`: validated parameters. `app`: renders them; pure.
* `parse`: parses parameters. `checks`: checks the file system before anything starts. `run_claim`: a run directory's owner.
"""

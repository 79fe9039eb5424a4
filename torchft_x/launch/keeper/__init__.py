"""Jobs of this machine that outlive the command that started them: TorchX's scheduler `local_ft` (launch/plugin) uses this.

* `keeper`: the process that owns a job: starts its roles, restarts killed processes, ends them all. Begin reading here.
* `upkeep`: decides on restarts, other numbers of groups, and when the job is over. Pure.
* `plan`: the processes to run. `record`: the job's public state (job.json).
* `roles`: the processes of the roles. `streams`: their output, to files.
* `commands`: ``torchft_x cancel`` and ``torchft_x scale``.
"""

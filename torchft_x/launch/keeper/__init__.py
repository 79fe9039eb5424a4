"""Jobs of this machine that outlive the command that started them: TorchX's scheduler `local_ft` (launch/plugin) uses this.

* `keeper`: the process that owns a job: starts its roles, restarts killed processes, ends them all. Begin reading here.
* `upkeep`: decides on restarts and when the job is over. `groups`: changes the number of groups. Both pure.
* `plan`: the processes to run. `record`: the job's public state (job.json), which `record_writer` writes.
* `roles`: the processes of the roles. `streams`: their output, to files.
* `commands`: ``torchft_x cancel`` and ``torchft_x scale``.
"""

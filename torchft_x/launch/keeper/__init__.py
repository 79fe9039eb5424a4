"""Jobs of this machine that outlive the command that started them: TorchX's scheduler `local_ft` (launch/plugin) uses this.

* `keeper`: the process that owns a job: starts its roles, starts again what was killed, ends all of it. Begin here.
* `upkeep`: when it starts something again, and when the job is over. `groups`: more groups, or fewer. Both pure.
* `plan`: what it shall run. `record`: what others may know of it (job.json). `index`: which jobs there are.
* `roles`: the processes of the roles. `streams`: their output, to files.
* `commands`: ``torchft_x cancel`` and ``torchft_x scale``.
"""

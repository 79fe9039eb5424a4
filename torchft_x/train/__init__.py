"""The training side: what a script imports.

Begin with `manager.Manager`, which wires the rooms: `setup` connects a rank, `context` holds the objects of a connected
rank, `step` runs its steps, `heal` copies state. `ddp` and `local` are built on the Manager and on its step loop
(`Manager.steps`), which reduces their gradients.

* `optim`: an optimizer that steps on commit only. `distributed_sampler`: the sampler over replica groups.
* `device`: the choice of the device and of the process group that fits it.
* `leaving`: the end of a training loop, and SIGTERM. `loader_workers`: keeps DataLoader workers alive through it.
* `lazy_compiler`: loads torch's compiler when something is compiled.
* `fault_tolerance`: settings in torchtitan's form.
* `parameter_server`: workers that never wait for each other, without a lighthouse.
"""

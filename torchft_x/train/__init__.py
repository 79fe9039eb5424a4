"""The training side: what a script imports.

Begin with `manager.Manager`, which wires the rooms: `setup` makes a connected rank, `context` is what such a rank
holds, `step` leads it through its steps, `heal` copies state. `ddp` and `local` are built on the Manager and on its loop
of steps (`Manager.steps`), which reduces for them.

* `optim`: an optimizer that steps on commit only. `data`: which samples a group takes. `device`: which device, and
  which process group fits it.
* `leaving`: the end of a training loop, and SIGTERM.
* `fault_tolerance`: settings in torchtitan's form.
* `parameter_server`, `parameter_wire`: workers that never wait for each other, without a lighthouse.
"""

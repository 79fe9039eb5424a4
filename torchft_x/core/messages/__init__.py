"""What goes into the machines of core, and what comes out: events and effects.

* `lighthouse`, `group`: of the two machines of those names. `job`: of the job's outcome and its sidecars.
* `nodes`: of groups over several nodes. `common`: of every machine.

The contract between a machine and its shell::

    for effect in machine.handle(event, now):   # decided under the shell's lock, no I/O
        shell.carry_out(effect)                 # done after the lock is released

A shell must deliver the events of one session in order, must deliver `Closed` exactly once and last, and must call
`handle(Tick(), now)` at least every `config.tick` seconds. A *session* is an integer the shell gives to each stream; a
*call* is one it gives to each unary request.
"""

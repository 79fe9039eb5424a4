"""What goes into the lighthouse and group machines, and what comes out.

The contract between a machine and its shell::

    for effect in machine.handle(event, now):   # decided under the shell's lock, no I/O
        shell.carry_out(effect)                 # done after the lock is released

A shell must deliver the events of one session in order, must deliver `Closed` exactly once and last,
and must call `handle(Tick(), now)` at least every `config.tick` seconds.
A *session* is an integer the shell gives to each stream; a *call* is one it gives to each unary request.
"""

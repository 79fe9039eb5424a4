"""Makes a connected rank from arguments and environment.

* `options`: arguments, else variables, else defaults, checked once. `connect`: connects a group's ranks.
* `excepthook`: ends a script that is refused with one sentence.
"""

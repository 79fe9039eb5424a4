"""From arguments and environment to a connected rank.

* `options`: arguments, else variables, else defaults, checked once. `connect`: brings a group's ranks together.
* `excepthook`: ends a script that is refused with one sentence.
"""

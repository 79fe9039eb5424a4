"""Status of a run and orders to it, from another shell: `torchft_x status`, `kill`, `drain`, `resume`, `pause`.

* `commands`: the command lines.
* `find`: finds the run, its lighthouse, and its end if it is over.
* `last_known`: reads the run directory while nobody serves.
* `lines`: formats the overview as lines of text. `live`: refreshes it in a terminal, with rich.
"""

"""Status of a run and orders to it, from another shell: `torchft_x status`, `kill`, `drain`, `resume`, `pause`.

* `commands`: the command lines; reads the run directory while nobody serves.
* `find`: finds the run, its lighthouse, and its end if it is over.
* `lines`: formats the overview as lines of text. `live`: refreshes it in a terminal, with rich.
"""

"""What a person asks about a run from another shell: `torchft_x status`, `kill`, `drain`, `resume`.

* `commands`: their command lines.
* `find`: which run is meant, where its lighthouse is, and how it ended if it has.
* `from_page`: the overview over HTTP, where the page is reached from here.
* `lines`: the overview as lines of text. `live`: the same in a terminal, again and again, with rich.
"""

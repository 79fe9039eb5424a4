"""A run for people: a summary in a terminal, one HTML file that needs no network, or JSON.

* `figures`: the figures of a run, alone or compared with another one, for a terminal and as JSON.
* `page`: the data of the HTML file, which `observe.template` makes.
"""

from torchft_x.observe.drawing.figures import as_json, summary
from torchft_x.observe.drawing.page import page

__all__ = ["as_json", "page", "summary"]

"""A run for people: a summary in a terminal, one HTML file that needs no network, or JSON.

* `shapes`: SVG by hand, as many shapes as the pictures need. A plotting library would bring its fonts and megabytes of
  script into each file, or import NumPy into the launcher; these pictures are boxes and lines.
* `timeline`: what each group did when, who took part, batches a second.
* `charts`: the loss, the times of steps, and the phases of a loss.
* `page`: all of it as one file. `text`: for a terminal. `figures`: what both say, alone or against another run.
"""

from torchft_x.observe.drawing.figures import as_json
from torchft_x.observe.drawing.page import page
from torchft_x.observe.drawing.text import summary

__all__ = ["as_json", "page", "summary"]

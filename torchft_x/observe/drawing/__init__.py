"""A run for people: a summary in a terminal, one HTML file that needs no network, or JSON.

* `shapes`: SVG shapes, as many as the pictures need. A plotting library would add fonts and megabytes of script to each
  file, or import NumPy into the launcher; these pictures are boxes and lines.
* `timeline`: the groups' activities, the participants, and the batches per second over time.
* `charts`: the loss curve, the step times, and the phases of a loss.
* `page`: the HTML file. `text`: the terminal's summary. `figures`: the figures in both, for one run or two.
"""

from torchft_x.observe.drawing.figures import as_json
from torchft_x.observe.drawing.page import page
from torchft_x.observe.drawing.text import summary

__all__ = ["as_json", "page", "summary"]

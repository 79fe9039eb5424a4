"""Export of a process's events to other tools.

* `steps`: a hook after each committed step, for TensorBoard, Weights & Biases, a file.
* `otel`: metrics and spans over OpenTelemetry's protocol; needs the extra ``torchft_x[otel]``.
"""

from torchft_x.observe.export.steps import on_step

__all__ = ["on_step"]

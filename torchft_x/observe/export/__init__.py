"""Export of a training's numbers to people and to other tools.

* `step_log`: log lines of a training loop, and its loss curve.
* `steps`: a hook after each committed step, for TensorBoard, Weights & Biases, a file.
* `otel`: metrics and spans over OpenTelemetry's protocol; needs the extra ``torchft_x[otel]``.
"""

from torchft_x.observe.export.step_log import StepLog
from torchft_x.observe.export.steps import on_step, track

__all__ = ["StepLog", "on_step", "track"]

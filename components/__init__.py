"""The components as Python functions. For TorchX there is a file of each, and `listed` with all of them."""

# ruff: noqa: TID252  The package is `torchft_x.components` where it is installed, and `components` in a clone.

from .ddp import ddp as ddp
from .diloco import diloco as diloco
from .hsdp import hsdp as hsdp
from .lighthouse import lighthouse as lighthouse
from .titan import titan as titan

"""The components as Python functions. For TorchX there is a file of each, and `listed` with all of them.

They are loaded on first use, because torchx-nightly imports this package before it runs the file that it was given.
"""

# ruff: noqa: TID252  The package is `torchft_x.components` where it is installed, and `components` in a clone.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .listed import ddp, diloco, hsdp, lighthouse, titan

__all__ = ["ddp", "diloco", "hsdp", "lighthouse", "titan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.listed"), name)

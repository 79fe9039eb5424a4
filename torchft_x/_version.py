"""Version of the package. A build or installation writes it into `_built` (CONTRIBUTING.md, "Release")."""

try:
    from torchft_x._built import __version__ as __version__
except ModuleNotFoundError:
    __version__ = "0.0"  # a clone that was never installed

"""Version of the package, importable without any other module."""

__version__ = "0.1.0"

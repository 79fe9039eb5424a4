"""Names the packages. Everything else that a build needs is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["torchft_x", "torchft_x.*"]),
        "torchft_x.components",
        "torchx_plugins.schedulers",  # where TorchX's nightly line looks for schedulers
    ]
)

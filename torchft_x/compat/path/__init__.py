"""Folder first in PYTHONPATH of a process whose ``import torchft`` gives torchft_x. Not imported as a package.

* `sitecustomize`: run by Python itself when it starts.
"""

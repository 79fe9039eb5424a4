"""Stands first in PYTHONPATH of a process in which ``import torchft`` is to bring torchft_x. Not imported by this name.

* `sitecustomize`: is run by Python itself when it starts.
"""

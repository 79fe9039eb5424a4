"""Durable checkpoints for people and for other programs: the command ``torchft_x checkpoint``.

* `cli`: its arguments and its output. `formats`: PyTorch's distributed checkpoint, and safetensors.
"""

"""``torchft_x doctor``: checks this machine's readiness for jobs. It changes and ends nothing.

`runner` runs the checks in the list `checks`. `host`, `network`, `software` and `torchx` contain the checks.
"""

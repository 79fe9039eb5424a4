"""The training scripts of `scripts/` as tests and benchmarks run them: paced, stopped on demand, and with dumps.

`ddp.py`, `hsdp.py` and `diloco.py` are run like the scripts of the same names, with the flags of `common` besides.
"""

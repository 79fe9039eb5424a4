"""torchft's module tree, for scripts that were written for it: every name is ours, or a small adapter around it.

::

    python -m torchft_x.compat script.py [ARG...]        # runs a script that imports torchft, unchanged
    from torchft_x.compat.manager import Manager         # instead of: from torchft.manager import Manager

docs/torchft.md describes it. New scripts import from `torchft_x`.

* `names`: where each name of each module is; the missing names, and why.
* `modules`: makes these modules when they are imported, here and under the name torchft.
* `__main__`: the command. `titan`: torchtitan's train module with torchft_x as its torchft.

The package adapters has the names that are more than another name of ours. The folder path is for PYTHONPATH, by which
child processes use these modules, too.

Nothing is loaded before it is used, so that a process that needs only a lighthouse doesn't load torch.
"""

from __future__ import annotations

from torchft_x.compat import modules
from torchft_x.compat.names import ROOT

modules.install()
modules.fill(globals(), ROOT)

"""torchft's module tree, for scripts that were written for it: every name is ours, or a small adapter around it.

::

    python -m torchft_x.compat script.py [ARG...]        # runs a script that imports torchft, unchanged
    from torchft_x.compat.manager import Manager         # instead of: from torchft.manager import Manager

docs/torchft.md is the page. Who begins anew imports from `torchft_x`.

* `names`: which name of which module is what; what there is not, and why.
* `modules`: makes these modules when they are imported, here and under the name torchft.
* `differences`: where the same name means something else on purpose, and which defects of torchft are gone.
* `__main__`: the command.

In adapters is what is more than another name; path is a folder for PYTHONPATH, by which child processes come here, too.

Nothing is loaded before it is used, so that who wants a lighthouse doesn't load torch.
"""

from __future__ import annotations

from torchft_x.compat import modules
from torchft_x.compat.names import ROOT

modules.install()
modules.fill(globals(), ROOT)

"""In a process whose PYTHONPATH names this folder, ``import torchft`` brings torchft_x (`torchft_x.compat`).

Python imports a module of this name when it starts, before the script and before anything that the script's own folder
could bring. The environment may have one, too: it is run as if this one were not there.
"""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    from torchft_x.compat.modules import install
except ModuleNotFoundError:  # not installed: a clone from whose folder Python was started
    sys.path.append(os.path.abspath(os.path.join(_here, *[os.pardir] * 3)))
    from torchft_x.compat.modules import install

install(as_torchft=True)

_others = [folder for folder in sys.path if os.path.abspath(folder) != _here]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None:
    _module = importlib.util.module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)

"""Makes ``import torchft`` give torchft_x (`torchft_x.compat`) in a process whose PYTHONPATH has this folder.

Python imports a module of this name when it starts, before the script and the modules in the script's folder. If the
environment has such a module, too, it is run afterwards, as if this one did not exist. A package named torchft in this
folder would not do: the script's folder comes first, and torchft's examples are run from a clone with its own package.

A package named torchft in our wheel could not be installed beside torchft's own, and a `.pth` file would cost every start
of Python in the environment. Child processes inherit PYTHONPATH; import hooks of one running process they would not.
"""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    from torchft_x.compat.modules import install
except ModuleNotFoundError:  # torchft_x is not installed; Python was started in the folder of a clone
    sys.path.append(os.path.abspath(os.path.join(_here, *[os.pardir] * 3)))
    from torchft_x.compat.modules import install

install(as_torchft=True)

_others = [folder for folder in sys.path if os.path.abspath(folder) != _here]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None:
    _module = importlib.util.module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)

"""When a life may be forked from the warm parent, and what that imports at which time. Pure.

What the parent can't give a child any more, because a library read it when it was loaded, makes the next life a cold one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping

from torchft_x import env

LAZY_COMPILER = "torchft_x.train.lazy_compiler"
"""Before all else, so that nothing loads the compiler: a script that compiles loads it in its workers (decision 80)."""
OURS = tuple(f"torchft_x.{name}" for name in ("train", "train.manager", "train.ddp", "train.optim", "train.data"))
OURS += ("torchft_x.observe", "torchft_x.rpc.group.server", "torchft_x.transfer", "torchft_x.comm", "fsspec")
"""What every Manager loads, for all lives."""
TORCH = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)
"""For the lives after the first."""
_KNOWN = ("torch", "torchft_x", "fsspec", "numpy")
"""Packages that take nothing of a rank from the environment when they are imported."""
_LOADERS = ("exec", "eval", "__import__", "import_module", "run_path", "run_module", "CDLL")
_REACHES = {"environ", "putenv", "unsetenv", *_LOADERS}
"""Names by which a script may set what a library reads, or run what does."""

# Different in each life, or not known yet when the parent is started, and read by nobody before the script runs.
_OF_A_LIFE = {env.ATTEMPT, env.LIFE, env.LIGHTHOUSE, env.LIGHTHOUSE_FILE, env.TOKEN_FILE, env.ADVERTISE_HOST}
_OF_A_LIFE |= {env.PRIVATE, env.MEMORY_SLOTS}


def why_never(given: Mapping[str, str]) -> str | None:
    """Why no life of this group is warm, as half a sentence; None: they may be."""
    return f"{env.WARM} is 0" if env.read(env.WARM, "1", given) == "0" else None


def difference(parent: Mapping[str, str], life: Mapping[str, str]) -> str | None:
    """Why a parent that was started with one environment can't serve a life with the other; None: it can."""
    names = sorted(n for n in {*parent, *life} - _OF_A_LIFE if parent.get(n) != life.get(n))
    return f"{names[0]} has changed since the warm parent was started" if names else None


def why_first_is_cold(script: str) -> str | None:
    """Why a script's first life must not be forked from a process that has imported torch already, as half a sentence; None:
    it may be.

    Only a script is, for which that makes no difference: nothing above its last import of torch or torchft_x could set what these
    read when they are imported, or expects to come before them.
    """
    body = _statements(script)
    last = max((i for i, node in enumerate(body) if _roots(node) & {"torch", "torchft_x"}), default=None)
    if last is None:
        return "the script imports no torch at its top level"
    for node in body[:last]:
        if isinstance(node, ast.Import | ast.ImportFrom) and not _reaches_by_name(node):
            strange = sorted(n for n in _roots(node) if n not in _KNOWN and n not in sys.stdlib_module_names)
            if strange:
                return f"the script imports {strange[0]} before torch or torchft_x"
        elif any(map(_reaches, ast.walk(node))):
            return f"the script's line {node.lineno} may set what torch or torchft_x reads when it is imported"
    return None


def _reaches(node: ast.AST) -> bool:
    """Whether it may change the environment, or load what might: any import that isn't at the top level."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return (getattr(node, "id", None) or getattr(node, "attr", None)) in _REACHES


def _reaches_by_name(node: ast.Import | ast.ImportFrom) -> bool:
    return any(alias.name in _REACHES for alias in node.names)


def imported_by(script: str) -> list[tuple[str, tuple[str, ...]]]:
    """Modules that a script's text imports at its top level, with the names it takes from each (none: ``import MODULE``). It is
    read, never run; not understood: none."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in _statements(script):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, tuple(alias.name for alias in node.names if alias.name != "*")))
    return list(dict.fromkeys(found))


def is_known(module: str) -> bool:
    """Whether the parent may import it for a first life, too."""
    return root(module) in _KNOWN


def root(module: str) -> str:
    """Its package."""
    return module.partition(".")[0]


def _statements(script: str) -> list[ast.stmt]:
    try:
        return ast.parse(script).body
    except (SyntaxError, ValueError):
        return []


def _roots(node: ast.stmt) -> set[str]:
    """Packages that a statement imports, if that is what it does; a relative import is of ".", which is nobody's."""
    if isinstance(node, ast.Import):
        return {root(alias.name) for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {root(node.module or "") if node.level == 0 else "."}
    return set()


def is_installed(origin: str | None, installed: Iterable[str]) -> bool:
    """Whether a module's file lies in one of the folders that installed packages have: it won't be edited meanwhile."""
    return origin is not None and any(origin.startswith(f"{folder.rstrip('/')}/") for folder in installed)

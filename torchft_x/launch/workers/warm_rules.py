"""Decides when an attempt may be forked from the warm parent, and what the parent imports and when. Pure.

A library may read a variable when it is imported. No import reads those few in which attempts differ from the parent
(`trainer_environment`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping

from torchft_x import env

LAZY_COMPILER = "torchft_x.train.lazy_compiler"
"""Imported first, so that no other import loads the compiler. A script that compiles loads it in its workers (decision 47)."""
OURS = tuple(
    f"torchft_x.{name}" for name in ("train", "train.manager", "train.ddp", "train.optim", "train.distributed_sampler")
)
OURS += ("torchft_x.observe", "torchft_x.rpc.group.server", "torchft_x.transfer", "torchft_x.comm", "fsspec")
"""Modules that every Manager loads, for all attempts."""
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
"""Modules imported for the attempts after the first."""
KNOWN = ("torch", "torchft_x", "fsspec", "numpy")
"""Packages that read no rank-dependent variable when they are imported. The parent may import them before the first attempt."""
_LOADERS = ("exec", "eval", "__import__", "import_module", "run_path", "run_module", "CDLL")
_REACHES = {"environ", "putenv", "unsetenv", *_LOADERS}
"""Names by which a script may set a variable that a library reads, or run code that does."""


def why_never(given: Mapping[str, str]) -> str | None:
    """Return the reason, as a clause, for which no attempt of this group is warm, or None if they may be."""
    return f"{env.WARM} is 0" if env.read(env.WARM, "1", given) == "0" else None


def why_first_is_cold(script: str) -> str | None:
    """Return (as a clause) why a script's first attempt must not be forked with torch imported; None if it may be.

    It may be only if the early import makes no difference: no statement above the script's last import of torch or
    torchft_x may set a variable that these read at import, or expect to run before them.
    """
    body = _statements(script)
    last = max((i for i, node in enumerate(body) if _roots(node) & {"torch", "torchft_x"}), default=None)
    if last is None:
        return "the script imports no torch at its top level"
    for node in body[:last]:
        if isinstance(node, ast.Import | ast.ImportFrom) and not any(alias.name in _REACHES for alias in node.names):
            strange = sorted(n for n in _roots(node) if n not in KNOWN and n not in sys.stdlib_module_names)
            if strange:
                return f"the script imports {strange[0]} before torch or torchft_x"
        elif any(map(_reaches, ast.walk(node))):
            return f"the script's line {node.lineno} may set what torch or torchft_x reads when it is imported"
    return None


def _reaches(node: ast.AST) -> bool:
    """Return whether a node may change the environment or load code that might; callers check top-level imports."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return (getattr(node, "id", None) or getattr(node, "attr", None)) in _REACHES


def imported_by(script: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the modules that a script imports at its top level, each with the names it takes (none for ``import MODULE``).

    `script` is the text. It is parsed, never run; text that can't be parsed yields no modules.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in _statements(script):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, tuple(alias.name for alias in node.names if alias.name != "*")))
    return list(dict.fromkeys(found))


def root(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def _statements(script: str) -> list[ast.stmt]:
    try:
        return ast.parse(script).body
    except (SyntaxError, ValueError):
        return []


def _roots(node: ast.stmt) -> set[str]:
    """Return the top-level packages that a statement imports. A relative import counts as ".", which is no package's name."""
    if isinstance(node, ast.Import):
        return {root(alias.name) for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {root(node.module or "") if node.level == 0 else "."}
    return set()


def is_installed(origin: str | None, installed: Iterable[str]) -> bool:
    """Return whether a module lies in a folder of installed packages, so that it won't be edited between attempts."""
    return origin is not None and any(origin.startswith(f"{folder.rstrip('/')}/") for folder in installed)

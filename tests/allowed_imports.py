"""Import-linter contract type `allowed`: a table of packages, with the packages from which each may import.

The stock contracts do not fit: `layers` allows every lower layer, `protected` takes six lines for each package, and
both treat a package and its subpackages as one. The table is in pyproject.toml, [tool.importlinter].
"""

from __future__ import annotations

import grimp
from importlinter import Contract, ContractCheck, fields, output

ROOT = "torchft_x"


class AllowedImports(Contract):
    """Contract that a module imports only from its own package, from the packages in its row, and from leaves."""

    table = fields.ListField(subfield=fields.StringField())  # "core.commit: core core.messages", bottom up
    leaves = fields.ListField(subfield=fields.StringField())  # modules at the top that every package may import
    core_leaves = fields.ListField(subfield=fields.StringField())  # modules at the top that core may import, too

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return the mistakes of the table, and each direct import that it does not allow."""
        rows = {name.strip(): allowed.split() for name, _, allowed in (row.partition(":") for row in self.table)}  # type: ignore[attr-defined]
        modules = {m for m in graph.modules if m.startswith(ROOT)}
        packages = {m for m in modules if graph.find_children(m)} | {f"{ROOT}.{row}" for row in rows}
        wrong = [f"{p} has no row in the table" for p in sorted(_short(p) for p in packages - {ROOT}) if p not in rows]
        names = list(rows)
        for n, name in enumerate(names):
            wrong += [
                f"{name} may import {a}, which is not above it in the table" for a in rows[name] if a not in names[:n]
            ]
        for module in sorted(modules - {ROOT, f"{ROOT}.__main__"}):
            package = _short(module if module in packages else module.rpartition(".")[0])
            leaves: list[str] = self.core_leaves if package.partition(".")[0] == "core" else self.leaves  # type: ignore[attr-defined]
            for target in sorted(graph.find_modules_directly_imported_by(module) & modules):
                home = _short(target if target in packages else target.rpartition(".")[0])
                below = module in packages and target.startswith(
                    module + "."
                )  # an __init__ may export from its own package
                if below or _short(target) in leaves or (home and home in (package, *rows.get(package, ()))):
                    continue
                for detail in graph.get_import_details(importer=module, imported=target):
                    if detail["line_contents"] != f"import {ROOT}":  # that import only reads the package's path
                        wrong.append(f"{module}, line {detail['line_number']}, imports {target}")
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the sentences that `check` has found."""
        for sentence in check.metadata["wrong"]:
            output.print_error(sentence)


def _short(module: str) -> str:
    return module.removeprefix(ROOT).lstrip(".")

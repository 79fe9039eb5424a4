#!/usr/bin/env python3
"""Write the component files, and the tables of docs/components.md, from the one list of parameters below.

    python scripts/make_components.py            # write the files that differ
    python scripts/make_components.py --check    # only print them; exit code 1 if any differs

TorchX reads a component's signature and docstring from the text of its file, and each way to name a component needs a
file of its own. So the same `def`s stand in several files. A test checks that they match this list.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Parameter:
    """Parameter of a component. Its type is one that torchx and torchx-nightly can both parse, else `str`."""

    name: str
    type: str
    default: str
    """Default value as Python source."""
    doc: str


@dataclass(frozen=True)
class Component:
    """A TorchX component: a function that makes the app of a job."""

    name: str
    summary: str
    """First line of the docstring."""
    more: str
    """Rest of the description; may be empty."""
    builder: str
    """Function of torchft_x.launch.job.build."""
    parameters: tuple[Parameter, ...]
    script: bool = True
    """Whether the component runs a script and takes the script's arguments."""


TLS = (
    Parameter(
        "tls",
        "str",
        '""',
        "on: TLS between all processes; control: all but tensors; off; empty: TORCHFT_X_TLS if set, else off",
    ),
    Parameter("tls_cert", "str", '""', "PEM file with a certificate of your own for all of the job; made if empty"),
    Parameter("tls_key", "str", '""', "PEM file with its key"),
    Parameter("tls_ca", "str", '""', "PEM file with the authority that signs the certificates of all of the job"),
)


def training(name: str, *more: Parameter, script: str = "scripts/train_ddp.py") -> tuple[Parameter, ...]:
    """Return the parameters of a component that trains, with its own `more`. An empty `script` leaves that one out."""
    return (
        *((Parameter("script", "str", f'"{script}"', "Python file that each worker runs"),) if script else ()),
        Parameter("replicas", "int", "2", "number of replica groups; each holds a whole copy of the model"),
        Parameter("workers_per_replica", "int", "1", "processes of one group, on all its nodes together"),
        Parameter("nodes_per_replica", "int", "1", "nodes (hosts, pods) of one group"),
        Parameter("max_restarts", "int", "10", "restarts of one group within an hour"),
        Parameter("min_replicas", "int", "1", "no step is taken, and the job can't go on, with fewer groups"),
        Parameter(
            "health",
            "str",
            '""',
            "shell command, run before each start of a group; a host on which it fails is not used",
        ),
        *more,
        Parameter("name", "str", f'"{name}"', "of the job, as the scheduler shows it"),
        Parameter(
            "lighthouse",
            "str",
            '""',
            "auto: the job brings its own; or HOST:PORT[,HOST:PORT] of running ones; "
            "empty: TORCHFT_LIGHTHOUSE if set, else auto",
        ),
        Parameter("lighthouses", "int", "1", "how many the job brings: with 2 or more the others stand by"),
        Parameter(
            "run_dir",
            "str",
            '""',
            "directory for events and logs, shared by the whole job; a new one below runs/ if empty",
        ),
        Parameter(
            "token_file", "str", '""', "file with the token of the lighthouse; made by the job's own one if empty"
        ),
        *TLS,
        Parameter("env", "str", '""', "environment of the script, as in A=1,B=2"),
        Parameter(
            "mounts",
            "Optional[List[str]]",
            "None",
            "of the containers, as in type=bind,src=PATH,dst=PATH,readonly,type=...",
        ),
        Parameter("image", "str", '""', "container image, where the scheduler uses one; empty: this file system"),
        Parameter("h", "Optional[str]", "None", "named resource of TorchX; wins over cpu, gpu and memMB"),
        Parameter("cpu", "int", "2", "cores of one group, on each of its nodes"),
        Parameter("gpu", "int", "0", "accelerators of one group, on each of its nodes"),
        Parameter("memMB", "int", "4096", "memory of one group in MiB, on each of its nodes"),
        Parameter("log_level", "str", '"info"', "debug, info, warning or error"),
        Parameter("log_format", "str", '"text"', "text, or json for a log collector: one object a line"),
        Parameter("debug", "str", '"False"', "True or False; True: much is logged, by PyTorch and NCCL as well"),
    )


SYNC = (
    Parameter("sync_steps", "int", "10", "steps of a group between two exchanges of the same part of the model"),
    Parameter("num_fragments", "int", "1", "parts of the model that are exchanged in turn"),
    Parameter("fragment_sync_delay", "int", "0", "steps that an exchange may take in the background"),
    Parameter("quantize", "str", '"none"', "none, int8, int4 or fp8: what is exchanged"),
    Parameter("islands", "str", '""', "processes of each group, as in 1,2,3; only rank 0 of a group exchanges then"),
)

TITAN = (
    Parameter("module", "str", '"torchft.llama3"', "torchtitan's --module: where the config is, one of your own too"),
    Parameter("config", "str", '"llama3_torchft_debugmodel"', "torchtitan's --config: a function of that module"),
)

LIGHTHOUSE = (
    Parameter("min_replicas", "int", "1", "groups that a quorum needs"),
    Parameter("lease_dir", "str", '""', "directory that several lighthouses share: one serves, the others stand by"),
    Parameter("state_file", "str", '""', "file on a local disk for what it has issued, where it is the only one"),
    Parameter("port", "int", "29510", "where it listens, on all addresses of its host; 0: a free port"),
    Parameter("join_timeout_ms", "int", "60000", "how long a quorum waits for groups that are alive and haven't asked"),
    Parameter(
        "heartbeat_timeout_ms", "int", "0", "silence of any kind after which a group counts as lost; 0: what fits"
    ),
    Parameter("quorum_tick_ms", "int", "100", "how often it looks at the clock"),
    Parameter("token_file", "str", '""', "file with the token that every caller needs"),
    *TLS,
    Parameter("run_dir", "str", '""', "directory for its address, events, and a token if none is given"),
    Parameter("name", "str", '"lighthouse"', "of the app, as the scheduler shows it"),
    Parameter("image", "str", '""', "container image, where the scheduler uses one; empty: this file system"),
    Parameter("h", "Optional[str]", "None", "named resource of TorchX; wins over cpu and memMB"),
    Parameter("cpu", "int", "1", "cores"),
    Parameter("memMB", "int", "512", "memory in MiB"),
    Parameter("log_level", "str", '"info"', "debug, info, warning or error"),
    Parameter("log_format", "str", '"text"', "text, or json for a log collector: one object a line"),
)

COMPONENTS = (
    Component(
        "ddp",
        "Fault-tolerant data parallel training: every worker holds the whole model, groups average their gradients.",
        "",
        "ft_app",
        training("ddp"),
    ),
    Component(
        "hsdp",
        "Fault-tolerant hybrid sharding: the model is sharded over a group's workers, groups average their gradients.",
        "The script does the sharding, as the default one shows (with workers_per_replica 2 or more).",
        "ft_app",
        training("hsdp", script="scripts/train_hsdp.py"),
    ),
    Component(
        "diloco",
        "Fault-tolerant training with few exchanges: groups train apart and average what they learned now and then.",
        "The script does it, as the default one shows; it finds the settings in TORCHFT_X_FAULT_TOLERANCE.",
        "diloco_app",
        training("diloco", *SYNC, script="scripts/train_diloco.py"),
    ),
    Component(
        "titan",
        "torchtitan's fault-tolerant training (its train module and its config), unmodified, on torchft_x.",
        "Arguments after -- are torchtitan's. Replica id, number of groups and --checkpoint.enable are added "
        "(docs/trainers.md).",
        "titan_app",
        (*TITAN, *training("titan", script="")),
    ),
    Component(
        "lighthouse",
        "A lighthouse for other jobs: decides which replica groups train together, and stays until it is stopped.",
        "Without token_file and run_dir it is open to everybody who reaches it, and says so.",
        "lighthouse_app",
        LIGHTHOUSE,
        script=False,
    ),
)

FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "components.py": (
        "The components of this repository: `torchx run ./components.py:hsdp`.",
        ("ddp", "hsdp", "diloco", "titan", "lighthouse"),
    ),
    # TorchX also lists a package's modules (ft.ddp.ddp); listed.py is a module, which has none.
    "components/listed.py": (
        "The components as TorchX lists them once torchft_x is installed: ft.ddp, ft.hsdp, ft.diloco, ft.titan, ft.lighthouse.",
        ("ddp", "hsdp", "diloco", "titan", "lighthouse"),
    ),
    **{
        f"components/{name}.py": (f"The component `{name}`: `torchx run ./components/{name}.py:{name}`.", (name,))
        for name in ("ddp", "hsdp", "diloco", "titan", "lighthouse")
    },
}

HEADER = '''"""{title}

Made by scripts/make_components.py: change it there. TorchX reads this file as text and runs it in surroundings of its
own: whole `def`s with plain annotations only, no helpers, no relative imports, no `from __future__`.
"""

import os
import sys
{typing}
from torchx import specs

try:
    from torchft_x.launch.job.build import {builders}
except ModuleNotFoundError:  # a bare clone: torchx doesn't search the current directory
    sys.path.insert(0, os.getcwd())
    try:
        from torchft_x.launch.job.build import {builders}
    except ModuleNotFoundError as e:
        if e.name != "torchft_x":
            raise
        raise SystemExit(
            f"torchft_x is neither installed for {{sys.executable}} nor in {{os.getcwd()}}: run torchx in the clone, or "
            "install it: pip install PATH_OF_THE_CLONE."
        ) from None
'''


def _names_script(c: Component) -> bool:
    return any(p.name == "script" for p in c.parameters)


def definition(c: Component) -> str:
    """Return the source of a component's `def`."""
    lines = [f"def {c.name}("]
    if c.script:
        lines.append("    *script_args: str,")
    lines += [f"    {p.name}: {p.type} = {p.default}," for p in c.parameters]
    lines += [") -> specs.AppDef:", f'    """{c.summary}', ""]
    if c.more:
        lines += [f"    {c.more}", ""]
    lines.append("    Args:")
    if c.script:
        lines.append("        script_args: arguments of the script, after --; write a flag given twice as --a=1 --a=2")
    lines += [f"        {p.name}: {p.doc}" for p in c.parameters]
    lines += ['    """', f"    return {c.builder}("]
    if c.script:
        lines += [*(["        script,"] if _names_script(c) else []), "        script_args,"]
    lines += [f"        {p.name}={p.name}," for p in c.parameters if not (c.script and p.name == "script")]
    return "\n".join([*lines, "    )\n"])


def component_file(title: str, names: tuple[str, ...]) -> str:
    """Return the source of a file with these components."""
    chosen = [c for c in COMPONENTS if c.name in names]
    used = [t for t in ("Dict", "List", "Optional") if any(f"{t}[" in p.type for c in chosen for p in c.parameters)]
    header = HEADER.format(
        title=title,
        typing=f"from typing import {', '.join(used)}\n" if used else "",
        builders=", ".join(sorted({c.builder for c in chosen})),
    )
    return "\n\n".join([header, *(definition(c) for c in chosen)])


def table(parameters: tuple[Parameter, ...]) -> str:
    """Return the parameters as a Markdown table."""
    rows = ["| parameter | default | |", "|---|---|---|"]
    for p in parameters:
        default = {"None": "", '""': ""}.get(p.default, f"`{p.default.strip(chr(34))}`")
        rows.append(f"| `--{p.name}` | {default} | {p.doc.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def documentation(text: str) -> str:
    """Return docs/components.md with new tables. Raise SystemExit if a table's markers are missing."""
    tables = {
        "training": table(training("NAME", script="see above")),
        "diloco": table(SYNC),
        "titan": table(TITAN),
        "lighthouse": table(LIGHTHOUSE),
    }
    for name, rows in tables.items():
        begin, end = f"<!-- {name}: made by scripts/make_components.py -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"docs/components.md has lost the place of the table {name!r}: {begin.strip()}")
        text = f"{before}{begin}{rows}\n{end}{after}"
    return text


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the content of every file that this program makes."""
    for file, (title, names) in FILES.items():
        yield ROOT / file, component_file(title, names)
    page = ROOT / "docs" / "components.md"
    yield page, documentation(page.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something differs")
    check = parser.parse_args().check
    different = [(p, t) for p, t in files() if not p.exists() or p.read_text(encoding="utf-8") != t]
    for path, text in different:
        print(f"{path.relative_to(ROOT)} {'differs' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())

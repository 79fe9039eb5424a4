"""In srun's place: starts the components of a command line at once, and cuts ``--export`` where the real one does.

As real: ":" separates components, ``--export`` is cut at commas outside quotes, variables of the job are passed on
with ALL, and the exit code is the highest one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys


def main(argv: list[str]) -> int:
    processes = []
    while argv:
        cut = argv.index(":") if ":" in argv else len(argv)
        component, argv = argv[:cut], argv[cut + 1 :]
        options: dict[str, str] = {}
        while component[0].startswith("--"):
            name, _, value = component.pop(0)[2:].partition("=")
            options[name] = value
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
        environ = {**os.environ, **job, **_exported(options.get("export", "ALL"))}
        processes.append(subprocess.Popen(component, env=environ))
    return max(p.wait() for p in processes)


def _exported(text: str) -> dict[str, str]:
    pieces = re.findall(r"""(?:'[^']*'|"[^"]*"|[^,'"]|['"])+""", text)
    return dict(p.split("=", 1) for p in pieces if "=" in p)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

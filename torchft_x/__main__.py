"""The command: ``torchft_x lighthouse ...``, ``torchft_x supervise ...`` and others; also ``python -m torchft_x``.

Each subcommand imports what it needs when it runs; none imports torch but `checkpoint`.
"""

from __future__ import annotations

import sys

from torchft_x._version import __version__

_USAGE = f"""torchft_x {__version__}

    torchft_x lighthouse --min_replicas N [...]          the service that decides who trains together
    torchft_x supervise --group G --groups N [...] -- SCRIPT [ARG...]
                                                         run one replica group and restart it when it dies
    torchft_x accompany --name NAME [...] -- PROGRAM [ARG...]
                                                         run a program beside the groups, as long as the job lives
    torchft_x status [RUN_DIR|ADDRESS] [--json]          what the groups of a run do; the newest run by default
    torchft_x kill|drain|resume GROUP [RUN_DIR|ADDRESS]  end a group and start it again; have it leave and rest; start it
    torchft_x dumps RUN_DIR [N]                          what was collected when groups died or hung, and what it says
    torchft_x checkpoint ls|verify|export|import [...]   what is saved at a URL; as PyTorch's or safetensors' files, and back
    torchft_x cancel RUN_DIR                             end a job of local_ft
    torchft_x scale RUN_DIR --replicas N                 give a job of local_ft more groups, or fewer
    torchft_x doctor [--lighthouse ADDRESS] [--run_dir DIR] [--torch] [--json]
                                                         look at this machine and say what to do

`torchft_x COMMAND --help` tells more. A whole job is started with `torchx run ./components.py:hsdp`.
"""


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 for a user's mistake (one sentence on stderr)."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["lighthouse"]:
        from torchft_x.launch.cli import lighthouse

        return lighthouse(words[1:])
    if words[:1] == ["supervise"]:
        from torchft_x.launch.cli import supervise

        return supervise(words[1:])
    if words[:1] == ["accompany"]:
        from torchft_x.launch.cli import accompany

        return accompany(words[1:])
    if words[:1] == ["status"]:
        from torchft_x.launch.status.commands import status

        return status(words[1:])
    if words[:1] in (["kill"], ["drain"], ["resume"]):
        from torchft_x.launch.status.commands import order

        return order(words[0], words[1:])
    if words[:1] == ["doctor"]:
        from torchft_x.launch.cli import doctor

        return doctor(words[1:])
    if words[:1] == ["dumps"]:
        from torchft_x.launch.cli import dumps

        return dumps(words[1:])
    if words[:1] in (["cancel"], ["scale"], ["keep-job"]):
        from torchft_x.launch.keeper.commands import main as keeper

        return keeper(words)
    if words[:1] == ["checkpoint"]:
        from torchft_x.transfer.convert.cli import main as checkpoint

        return checkpoint(words[1:])
    if words[:1] in (["-V"], ["--version"]):
        print(f"torchft_x {__version__}")
        return 0
    if words[:1] in ([], ["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0 if words else 2
    known = "lighthouse, supervise, accompany, status, kill, drain, resume, dumps, checkpoint, cancel, scale and doctor"
    print(f"torchft_x: there is no command {words[0]!r}; the commands are {known}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

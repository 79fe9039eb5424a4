"""The component `lighthouse`: `torchx run ./components/lighthouse.py:lighthouse`.

Made by scripts/make_components.py: change it there. TorchX reads this file as text and runs it in surroundings of its
own: whole `def`s with plain annotations only, no helpers, no relative imports, no `from __future__`.
"""

import os
import sys
from typing import Optional

from torchx import specs

try:
    from torchft_x.launch.job.build import lighthouse_app
except ModuleNotFoundError:  # a bare clone: torchx doesn't search the current directory
    sys.path.insert(0, os.getcwd())
    try:
        from torchft_x.launch.job.build import lighthouse_app
    except ModuleNotFoundError as e:
        if e.name != "torchft_x":
            raise
        raise SystemExit(
            f"torchft_x is neither installed for {sys.executable} nor in {os.getcwd()}: run torchx in the clone, or "
            "install it: pip install PATH_OF_THE_CLONE."
        ) from None


def lighthouse(
    min_replicas: int = 1,
    lease_dir: str = "",
    state_file: str = "",
    port: int = 29510,
    join_timeout_ms: int = 60000,
    heartbeat_timeout_ms: int = 0,
    quorum_tick_ms: int = 100,
    token_file: str = "",
    tls: str = "",
    tls_cert: str = "",
    tls_key: str = "",
    tls_ca: str = "",
    run_dir: str = "",
    name: str = "lighthouse",
    image: str = "",
    h: Optional[str] = None,
    cpu: int = 1,
    memMB: int = 512,
    log_level: str = "info",
    log_format: str = "text",
) -> specs.AppDef:
    """A lighthouse for other jobs: decides which replica groups train together, and stays until it is stopped.

    Without token_file and run_dir it is open to everybody who reaches it, and says so.

    Args:
        min_replicas: groups that a quorum needs
        lease_dir: directory that several lighthouses share: one serves, the others stand by
        state_file: file on a local disk for what it has issued, where it is the only one
        port: where it listens, on all addresses of its host; 0: a free port
        join_timeout_ms: how long a quorum waits for groups that are alive and haven't asked
        heartbeat_timeout_ms: silence of any kind after which a group counts as lost; 0: what fits
        quorum_tick_ms: how often it looks at the clock
        token_file: file with the token that every caller needs
        tls: on: TLS between all processes; control: all but tensors; off; empty: TORCHFT_X_TLS if set, else off
        tls_cert: PEM file with a certificate of your own for all of the job; made if empty
        tls_key: PEM file with its key
        tls_ca: PEM file with the authority that signs the certificates of all of the job
        run_dir: directory for its address, events, and a token if none is given
        name: of the app, as the scheduler shows it
        image: container image, where the scheduler uses one; empty: this file system
        h: named resource of TorchX; wins over cpu and memMB
        cpu: cores
        memMB: memory in MiB
        log_level: debug, info, warning or error
        log_format: text, or json for a log collector: one object a line
    """
    return lighthouse_app(
        min_replicas=min_replicas,
        lease_dir=lease_dir,
        state_file=state_file,
        port=port,
        join_timeout_ms=join_timeout_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
        quorum_tick_ms=quorum_tick_ms,
        token_file=token_file,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        run_dir=run_dir,
        name=name,
        image=image,
        h=h,
        cpu=cpu,
        memMB=memMB,
        log_level=log_level,
        log_format=log_format,
    )

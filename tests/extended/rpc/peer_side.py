"""Servers and clients of the peer, run by the peer's interpreter and driven line by line; never imports torchft_x.

It reads one JSON command per line, and answers with one JSON object per line. See test_peer.py.
"""

import json
import os
import sys
import threading
from datetime import timedelta

from torchft._torchft import LighthouseClient, LighthouseServer, ManagerClient, ManagerServer

SCALE = float(os.environ.get("TORCHFT_X_TIME_SCALE") or 1)
SECOND = timedelta(seconds=3 * SCALE)  # stretched as by tests.util.scaled
kept = {}


def lighthouse_server(min_replicas):
    kept["lighthouse"] = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=min_replicas, join_timeout_ms=100, heartbeat_timeout_ms=int(1000 * SCALE)
    )
    return kept["lighthouse"].address()


def lighthouse_client(address, replica_id, step):
    client = LighthouseClient(address, connect_timeout=5 * SECOND)
    client.heartbeat(replica_id, timeout=5 * SECOND)
    q = client.quorum(replica_id, timeout=20 * SECOND, address="a", store_address="s", step=step, data={"k": 1})
    ids = [p.replica_id for p in q.participants]
    return {"quorum_id": q.quorum_id, "ids": ids, "created": q.created.seconds, "data": q.participants[0].data}


def impatient_client(address):
    try:
        LighthouseClient(address, connect_timeout=5 * SECOND).quorum("late", timeout=SECOND / 2)
    except Exception as e:
        return [type(e).__name__, str(e)]
    return "answered"


def manager_server(replica_id, lighthouse):
    kept[replica_id] = ManagerServer(
        replica_id=replica_id,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        bind="127.0.0.1:0",
        store_addr=f"store_{replica_id}",
        world_size=1,
        heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=5 * SECOND,
        quorum_retries=0,
    )
    return kept[replica_id].address()


def manager_client(address, step, commit_failures=0):
    client = ManagerClient(address, connect_timeout=5 * SECOND)
    r = client._quorum(
        group_rank=0,
        step=step,
        checkpoint_metadata="from the peer",
        shrink_only=False,
        init_sync=True,
        commit_failures=commit_failures,
        timeout=20 * SECOND,
        reconfigure_handle="h",
    )
    committed = client.should_commit(0, step, True, timeout=20 * SECOND)
    names = "quorum_id replica_rank replica_world_size heal max_step store_address recover_src_manager_address"
    result = {name: getattr(r, name) for name in names.split()}
    return {**result, "committed": committed, "metadata": client._checkpoint_metadata(0, timeout=5 * SECOND)}


def shutdown(name):
    kept.pop(name).shutdown()
    return True


def together(calls):
    """Run several commands at once, as a quorum needs all members to ask."""
    results = [None] * len(calls)

    def run(i, name, args):
        results[i] = globals()[name](*args)

    threads = [threading.Thread(target=run, args=(i, *call)) for i, call in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


for line in sys.stdin:
    name, args = json.loads(line)
    try:
        answer = {"ok": globals()[name](*args)}
    except Exception as e:
        answer = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(answer), flush=True)

"""What a forked child (a DataLoader's worker) holds of its parent: it must not keep a port, a lock or a connection alive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x import descriptors
from torchft_x.comm.store.create import serve_store
from torchft_x.comm.subprocess import fork_server
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.net import Address, parse_address
from torchft_x.rpc.group.server import close_liveness_sockets, open_liveness_socket
from torchft_x.transfer.memory_slots import MemorySlot

ROOT = Path(__file__).parents[2]
LIMIT = 1 << 20


@contextlib.contextmanager
def forked_child() -> Iterator[int]:
    """A child that was forked as a loader's worker is, and lives until the end of the block."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        yield child
    finally:
        os.close(write)
        os.waitpid(child, 0)


def refuses(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=scaled(5)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_other_side_reads_the_end_while_a_forked_child_lives() -> None:
    ours, theirs = socket.socketpair()
    descriptors.not_inherited(ours)
    theirs.settimeout(scaled(10))
    with forked_child() as child:
        held = f"/proc/{child}/fd/{ours.fileno()}"
        # /dev/null: the number stays taken.
        wait_for(lambda: stat.S_ISCHR(os.stat(held).st_mode), 10, "the child has let go")
        assert os.readlink(held) == os.devnull
        ours.send(b"the parent's is as it was")
        assert theirs.recv(100) != b""
        ours.close()
        assert theirs.recv(100) == b""
    theirs.close()


def test_a_closed_connection_ends_though_somebody_else_holds_it() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(scaled(10))
    with forked_child():
        descriptors.close(ours)
        assert theirs.recv(100) == b""
    theirs.close()


def test_the_thread_of_a_store_ends_while_a_forked_child_lives() -> None:
    server, address = serve_store("127.0.0.1")
    (thread,) = [t for t in threading.enumerate() if t.name == "torchft_x store"][-1:]
    with forked_child():
        server.close()
        assert not thread.is_alive()
        assert refuses(Address("127.0.0.1", address.port))


def test_a_forked_child_does_not_seem_to_be_the_process_that_evaluates() -> None:
    """R21."""
    address = parse_address(open_liveness_socket("http://127.0.0.1:1"))
    with forked_child():
        assert not refuses(address)
        close_liveness_sockets()
        assert refuses(address)


def test_the_helper_of_process_groups_ends_by_itself_while_a_forked_child_lives() -> None:
    fork_server.warm_up()
    with forked_child():
        background(fork_server._server._stop).result(scaled(60))  # waits for its end


OWNER = """
import json, os, sys
from torchft_x import LighthouseServer
from torchft_x.comm.gloo import device
from torchft_x.comm.store.create import serve_store
from torchft_x.rpc.group.server import close_liveness_sockets, open_liveness_socket
from torchft_x.transfer import HTTPTransport
from torchft_x.transfer.memory_slots import MemorySlot

lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
store, address = serve_store("127.0.0.1")
gloo = device.lease("127.0.0.1")
transport = HTTPTransport(timeout=10.0)
slot = MemorySlot.open(sys.argv[1], int(sys.argv[2]))
served = [lighthouse.address(), f"127.0.0.1:{address.port}", open_liveness_socket("http://127.0.0.1:1"),
          gloo.addresses()[0], transport.metadata()]
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(json.dumps({"served": served, "slot": slot is not None, "child": child}), flush=True)
import threading; threading.Event().wait()
"""


def test_a_forked_child_that_outlives_its_killed_parent_keeps_no_port_and_no_lock() -> None:
    memory = CheckpointMemory(1)
    name = memory.names[0][0]
    words = [sys.executable, "-c", OWNER, name, str(LIMIT)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        assert said["slot"]
        ports = [parse_address(a.split("/checkpoint")[0]).port for a in said["served"]]
        assert not any(refuses(Address("127.0.0.1", port)) for port in ports)
        assert MemorySlot.open(name, LIMIT) is None
        process.send_signal(signal.SIGKILL)
        process.wait(scaled(10))
        os.kill(said["child"], 0)  # it lives
        for served, port in zip(said["served"], ports, strict=True):
            wait_for(partial(refuses, Address("127.0.0.1", port)), 10, f"the end of {served}, number {port} of {ports}")
        slot = MemorySlot.open(name, LIMIT)
        assert slot is not None
        slot.close()
        os.kill(said["child"], 0)
    finally:
        if process.poll() is None:
            process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait(scaled(10))
        memory.close()

"""Quantised collectives: what comes out, what goes over the wire, and what a failure looks like."""

from __future__ import annotations

import torch.distributed as dist

from tests.torch.comm.quantized_member import FORMATS, main
from tests.util import fork_server, scaled

# --- processes --------------------------------------------------------------------------------------------------------------


def test_processes_of_2_3_and_5_hold_the_same_bits(store: dist.TCPStore) -> None:
    with fork_server("tests.torch.comm.quantized_member") as context:  # torch is imported once
        pipes, processes = [], []
        for rank in range(5):
            mine, theirs = context.Pipe(duplex=False)
            processes.append(context.Process(target=main, args=(theirs, store.port, rank, (5, 3, 2)), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(mine)
        try:
            assert all(pipe.poll(scaled(30)) for pipe in pipes)
            found = [pipe.recv() for pipe in pipes]  # EOFError: that member died
        finally:
            for process in processes:
                process.kill()
                process.join()
    for size in (2, 3, 5):
        for fmt in FORMATS:
            assert len({one[size, fmt] for one in found[:size]}) == 1, (size, fmt)

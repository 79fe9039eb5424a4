"""Random runs of the simulated cluster against mutants of core: ``python -m tests.mutation.hunts pledge --rules --sample 5``.

The tests of core say of each rule what it is for. Here nobody says anything: a mutant is put in, and the swarm goes on from
seed to seed until an invariant breaks or the time is over. What it doesn't find is a rule whose harm the simulator can't see,
or that only people see; which of them, is for a person to say.
"""

from __future__ import annotations

import argparse
import os
import time

from tests.mutation.mutants import Mutant
from tests.mutation.patched import install
from tests.mutation.run import accepted, chosen, some, source_of
from tests.sim import swarm
from tests.sim.invariants import Violation


def hunt(mutant: Mutant, seconds: float, first: int) -> str:
    """In a child process: what the swarm said of the mutant within these seconds of the processor."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(writer, _found(mutant, seconds, first).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text or "the process ended without a word"


def _found(mutant: Mutant, seconds: float, first: int) -> str:
    install(mutant, source_of(mutant.module))
    began, seed = time.process_time(), first
    while (spent := time.process_time() - began) < seconds:
        try:
            swarm.run(seed)
        except Violation as e:
            return f"{e.invariant} after {spent:.1f} s, seed {seed}: {e.what}"
        except Exception as e:
            return f"{type(e).__name__} after {spent:.1f} s, seed {seed}: {e}"
        seed += 1
    return f"nothing in {seconds:.0f} s, {seed - first} runs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.hunts", description=__doc__)
    parser.add_argument("modules", nargs="*", help="of core, by dotted name, as in lighthouse.loss (default: all)")
    parser.add_argument("--sample", type=int, default=10, help="so many mutants, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--rules", action="store_true", help="mutants that forget a part of a rule")
    parser.add_argument("--only", default="", help="those whose key contains this")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for each")
    parser.add_argument("--first", type=int, default=0, help="first seed of the runs")
    o = parser.parse_args()
    known = accepted()
    wanted = [m for m in chosen(o.modules, 0, 0, o.rules) if m.key not in known and o.only in m.key]
    for mutant in some(wanted, o.sample, o.seed):
        print(f"{hunt(mutant, o.seconds, o.first)}\n    {mutant.key}", flush=True)


if __name__ == "__main__":
    main()

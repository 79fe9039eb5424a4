"""All kinds of faults. Importing this package fills `KINDS` of the module `faults`."""

from tests.sim.kinds import links, processes, traps

__all__ = ["links", "processes", "traps"]

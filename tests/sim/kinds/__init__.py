"""All kinds of faults. Importing this fills `tests.sim.faults.KINDS`."""

from tests.sim.kinds import links, processes, traps

__all__ = ["links", "processes", "traps"]

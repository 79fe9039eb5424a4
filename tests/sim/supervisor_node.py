"""A group's supervisor: starts one attempt after the other and reports to the lighthouse how each ended.

It models `launch.supervisor.group` and `rpc.supervisor_client`: current facts are reported again after every reconnect,
so that a report made while the lighthouse was away is not lost. Of the rules of `launch.process.restarts` one is
modelled. After a few attempts in a row that can never train (they would have to heal across the libraries) the group is
not started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.base import Process
from tests.sim.group_node import GroupNode
from tests.sim.held import SupervisorMemory
from tests.sim.lighthouse_node import UNIX, SupervisorHello
from tests.sim.uplink import Uplink
from torchft_x.core.messages import job
from torchft_x.core.messages import lighthouse as m
from torchft_x.core.types import AttemptId, State

if TYPE_CHECKING:
    from tests.sim.world import World

HOPELESS_ATTEMPTS = 3  # as in `RestartRules.loop`
TOLD_AFTER = 2 / 3  # fraction of the limit, as in launch.process.hangs
LOOK = 0.1  # seconds between two checks of the processes


class SupervisorNode:
    """Supervisor of one group: owns its attempts, their reports, and the copies in its memory.

    Its site differs from its group's, so that it can be cut off alone.
    """

    def __init__(self, world: World, group: str, host: str) -> None:
        self.world = world
        self.group = group  # group id, over all attempts
        self.host = host  # site of the group's processes
        self.process = Process(f"supervisor/{host}", f"s{host}", world.clock_of(host))
        self.node: GroupNode | None = None  # the running attempt, or the last one
        self.wants = True  # the group is (re)started when it ends
        self.attempts = 0
        self.attempt = 0
        self.memory = SupervisorMemory(world.config.ranks) if world.config.memory else None
        self._hopeless = 0  # number of attempts in a row that were refused beside the peer's clients
        self.uplink = Uplink(world, self.process, self)
        self._reports: list[job.AttemptExited] = []  # exits, reported again after each reconnect
        self._begun: job.AttemptStarted | None = None  # the running attempt
        self._halted: tuple[Process, float] | None = None  # process reported as stopped, time of its stop

    def start(self) -> None:
        self.uplink.connect()
        self._begin_attempt()

    @property
    def running(self) -> bool:
        return self.node is not None and not self.node.ended

    def _begin_attempt(self) -> None:
        world = self.world
        if not self.wants or self.running:
            return
        self.attempts += 1
        replica_id = f"{self.group}:{self.attempts}"
        attempt_id = AttemptId(self.attempt, UNIX + world.now, f"token-{replica_id}")
        self.attempt += 1
        self.node = GroupNode(world, self, replica_id, attempt_id)
        self._halted = None
        self._begun = job.AttemptStarted(self.group, attempt_id.number, attempt_id.token)
        self.uplink.send(self._begun)
        world.nodes[replica_id] = self.node
        world.after(world.rng.uniform(*world.config.startup), self.node.process, self.node.start)

    def on_exit(self, node: GroupNode, code: int) -> None:
        """Report the end of an attempt after all its processes have ended, and start the next if the rules allow."""
        self.world.note(self.process.name, "saw {} end with code {}", node.replica_id, code)
        report = job.AttemptExited(self.group, node.attempt_id.number, node.attempt_id.token, code, "")
        self._begun = None
        self._tell_held()
        self.report(report)
        self._hopeless = self._hopeless + 1 if self.group in self.world.checker.hopeless else 0
        if code == 0 or self._hopeless >= HOPELESS_ATTEMPTS:
            self.wants = False
            self._tell_held()
        elif self.wants:
            pause = self.world.rng.uniform(*self.world.config.restart_pause)
            self.world.after(pause, self.process, self._begin_attempt)

    def on_stopped(self, process: Process) -> None:
        """Schedule the report of a stopped process. It is sent if the process is still stopped after a while."""
        if self._minds(process):
            after = self.world.config.lighthouse.silence.stopped * TOLD_AFTER
            self.world.after(after, self.process, self._tell_halt, process, self.world.now)

    def on_going_on(self, process: Process) -> None:
        if self._minds(process):
            self.world.after(self.world.rng.uniform(0.0, LOOK), self.process, self._tell_again)

    def _minds(self, process: Process) -> bool:
        return self.node is not None and process in self.node.processes and not self.process.dead

    def _tell_halt(self, process: Process, since: float) -> None:
        if self._halted is None and process.paused and process.resumed <= since and self._minds(process):
            self._halted = (process, since)
            self._tell_halted()

    def _tell_halted(self) -> None:
        if self._halted is not None and self.node is not None:
            process, since = self._halted
            self.uplink.send(m.AttemptHalted(0, self.node.attempt_id.token, process.name, self.world.now - since))

    def _tell_again(self) -> None:
        """Report that the stopped process continues."""
        if self._halted is not None and self.node is not None and not self._halted[0].paused:
            self._halted = None
            self.uplink.send(m.AttemptHalted(0, self.node.attempt_id.token, ""))

    def _tell_held(self) -> None:
        """Report the state from which the next attempt can continue."""
        newest = self.memory.newest if self.memory is not None and self.wants else None
        self.uplink.send(m.CopyHeld(0, newest or State()))

    def stop(self) -> None:
        """Stop the group, as the lighthouse reports the job as finished."""
        self.wants = False
        if self.node is not None:
            self.node.kill(0)

    def come_back(self) -> None:
        """Start a group again that has left."""
        if not self.wants:
            self.wants = True
            self._begin_attempt()

    def die(self) -> None:
        """Kill this supervisor with all processes of its group."""
        self.process.die()
        self.uplink.close()
        if self.node is not None:
            self.node.kill(-9)

    def restart(self) -> SupervisorNode:
        """Start a successor, as an init system does, which reports the end of the attempt that died with this one."""
        again = self._succeed(self.host)
        for end in self._reports:
            again.report(end)
        if self._begun is not None:
            again.report(job.AttemptExited(self.group, self._begun.attempt, self._begun.attempt_token, -9, ""))
        return again

    def report(self, end: job.AttemptExited) -> None:
        """Report the end of an attempt, now and after each reconnect."""
        self._reports.append(end)
        self.uplink.send(end)

    # --- power ---------------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """End the whole host at once: nothing is reported and no connect is refused."""
        network, sites = self.world.network, (self.host, self.process.site)
        network.off.update(sites)
        self.world.unproven = True
        if self.node is not None:
            self.node.vanish()
        self.process.die()
        for site in sites:
            network.vanish(site)

    def restore_power(self) -> SupervisorNode:
        """Start the group's role again on this host, as the scheduler does."""
        self.world.network.off.difference_update((self.host, self.process.site))
        return self._succeed(self.host)

    def move(self) -> SupervisorNode:
        """Start the group's role on another host, as the scheduler does. The attempt here continues as the last one."""
        self.wants = False
        return self._succeed(f"{self.host}'")

    def _succeed(self, host: str) -> SupervisorNode:
        """Start a new supervisor of the same group, which continues the count of attempts."""
        again = SupervisorNode(self.world, self.group, host)
        again.attempts, again.attempt = self.attempts, self.attempt
        self.world.supervisors[self.group] = again
        again.start()
        return again

    # --- the stream ----------------------------------------------------------------------------------------------

    def hello(self) -> Any:
        return SupervisorHello(self.group)

    def on_up(self) -> None:
        if not self.running:
            self._tell_held()
        for report in self._reports:
            self.uplink.send(report)
        if self._begun is not None:
            self.uplink.send(self._begun)
        self._tell_halted()

    def on_down(self, reason: str) -> None:
        self.world.note(self.process.name, "has lost the lighthouse: {}", reason)

    def on_word(self, message: object) -> None:
        pass  # a refusal changes nothing, and an answer is a sign of life only

    on_pong = on_word

    def eager(self) -> bool:
        return False

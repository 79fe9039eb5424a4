"""Values of a scenario, all frozen. Times are seconds. The scenarios are in the module `stories`."""

from __future__ import annotations

from dataclasses import dataclass

LIGHTHOUSE = "lighthouse"
EVERYBODY = "everybody"


@dataclass(frozen=True)
class AtStep:
    """Moment at which the job has committed so many steps."""

    step: int  # number of steps that the job has committed


@dataclass(frozen=True)
class Later:
    """Moment at a fixed time after the previous deed."""

    seconds: float  # seconds after the previous deed; 0: at the same moment


@dataclass(frozen=True)
class When:
    """Moment at which a group begins an action."""

    group: str
    does: str  # "heals": begins its next heal; "reduces": begins its next reduction of gradients


@dataclass(frozen=True)
class Together:
    """Moment at which all expected groups have committed a step together, after the previous deed."""


Moment = AtStep | Later | When | Together


@dataclass(frozen=True)
class Target:
    """A group's trainer, a group's supervisor, or the lighthouse."""

    kind: str  # "trainer", "supervisor", "lighthouse"
    group: str = ""  # empty: the lighthouse


THE_LIGHTHOUSE = Target("lighthouse")


def trainer(group: str) -> Target:
    return Target("trainer", group)


def supervisor(group: str) -> Target:
    return Target("supervisor", group)


@dataclass(frozen=True)
class Kill:
    """SIGKILL of a process."""

    target: Target


@dataclass(frozen=True)
class Start:
    """Start of a process that was killed."""

    target: Target  # a supervisor or lighthouse that was killed


@dataclass(frozen=True)
class Pause:
    """SIGSTOP of a process, and SIGCONT later."""

    target: Target  # a trainer or the lighthouse
    seconds: float


@dataclass(frozen=True)
class Cut:
    """Cut of the link between two machines for a while."""

    group: str
    other: str  # a group, the lighthouse, or everybody: no packet passes between the two machines
    seconds: float


@dataclass(frozen=True)
class Lose:
    """Power failure of a group's machine for a while."""

    group: str  # group whose machine loses its power
    seconds: float  # seconds until the group is started again on it


@dataclass(frozen=True)
class Leave:
    """Leave of a group at its next boundary."""

    group: str


@dataclass(frozen=True)
class Join:
    """Start of a further group."""

    group: str


Action = Kill | Start | Pause | Cut | Lose | Leave | Join


@dataclass(frozen=True)
class Deed:
    """One action of the story and its moment. Deeds happen in the order of the story."""

    moment: Moment
    action: Action


@dataclass(frozen=True)
class Gapless:
    """Wish that a group skips no step by healing."""

    group: str  # group that must have committed every step itself


@dataclass(frozen=True)
class MostAttempts:
    """Wish that a group is started at most so often."""

    group: str
    attempts: int  # highest number of starts


@dataclass(frozen=True)
class MostDropped:
    """Wish that at most so many steps are dropped."""

    steps: int  # highest number of steps that any group dropped


@dataclass(frozen=True)
class LongestStall:
    """Wish that the job never stands still for longer."""

    seconds: float  # bound of the time between two steps of the job, from its first on


Wish = Gapless | MostAttempts | MostDropped | LongestStall


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Settings, story and expectations."""

    name: str
    groups: int = 3
    """Number of groups at the start: g0, g1, ..."""
    steps: int = 40
    """Number of steps for which the run goes on at least: every expected group commits them, or copies their state."""
    heartbeat_timeout: float | None = None
    """Seconds of silence of any kind that the lighthouse takes for death; None: the product's rules."""
    timeout: float = 10.0
    """Seconds until a reduction, a heal or a vote times out."""
    lease: float | None = None
    """Seconds of a lease; None: the product's. A scenario that sets it is only simulated, as real processes have no
    other.
    """
    only_simulated: str = ""
    """Reason why real processes can't play it; empty: they can."""
    story: tuple[Deed, ...] = ()
    expectations: tuple[Wish, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether links are cut, which needs networks of their own for real processes."""
        return any(isinstance(d.action, Cut | Lose) for d in self.story)

    def wanted(self, done: int) -> tuple[str, ...]:
        """Return the expected groups, running or starting, after the first `done` deeds."""
        groups = [f"g{i}" for i in range(self.groups)]
        for deed in self.story[:done]:
            a = deed.action
            gone = isinstance(a, Leave) or (isinstance(a, Kill) and a.target.kind == "supervisor")
            if isinstance(a, Join) or (isinstance(a, Start) and a.target.kind == "supervisor"):
                groups.append(a.group if isinstance(a, Join) else a.target.group)
            elif gone:
                groups.remove(a.group if isinstance(a, Leave) else a.target.group)
        return tuple(groups)

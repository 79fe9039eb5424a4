"""What a scenario is made of: frozen values. Times are seconds. `tests.scenario.language` reads them from a file."""

from __future__ import annotations

from dataclasses import dataclass

LIGHTHOUSE = "lighthouse"
EVERYBODY = "everybody"


@dataclass(frozen=True)
class AtStep:
    step: int  # that the job has committed


@dataclass(frozen=True)
class Later:
    seconds: float  # after the deed before; 0: at the same moment


@dataclass(frozen=True)
class When:
    group: str
    does: str  # "heals": next begins to heal; "reduces": next begins to reduce gradients


@dataclass(frozen=True)
class Together:
    """When all groups that should be there have committed a step together, after the deed before."""


Moment = AtStep | Later | When | Together


@dataclass(frozen=True)
class Target:
    """A group's trainer, a group's supervisor, or the lighthouse."""

    kind: str  # "trainer", "supervisor", "lighthouse"
    group: str = ""  # empty: the lighthouse


@dataclass(frozen=True)
class Kill:
    target: Target


@dataclass(frozen=True)
class Start:
    target: Target  # a supervisor or lighthouse that was killed


@dataclass(frozen=True)
class Pause:
    target: Target  # no supervisor
    seconds: float


@dataclass(frozen=True)
class Cut:
    group: str
    other: str  # a group, the lighthouse, or everybody: nothing passes between the two machines
    seconds: float


@dataclass(frozen=True)
class Lose:
    group: str  # its machine loses its power
    seconds: float  # until the group is started again there


@dataclass(frozen=True)
class Leave:
    group: str


@dataclass(frozen=True)
class Join:
    group: str


Action = Kill | Start | Pause | Cut | Lose | Leave | Join


@dataclass(frozen=True)
class Deed:
    """One thing that happens. Deeds happen in the order of the file."""

    line: int
    text: str
    moment: Moment
    action: Action

    @property
    def needs(self) -> set[str]:
        """Groups that must be there for it."""
        a = self.action
        if isinstance(a, Join | Start):
            return set()
        named = {a.target.group} if isinstance(a, Kill | Pause) else {a.group}
        named |= {a.other} if isinstance(a, Cut) else set()
        return named - {"", LIGHTHOUSE, EVERYBODY}


@dataclass(frozen=True)
class AllAt:
    step: int  # every group that should be there has committed it, or has copied it from another


@dataclass(frozen=True)
class Gapless:
    group: str  # has committed every step itself


@dataclass(frozen=True)
class MostLives:
    group: str
    lives: int  # so often it was started at the most


@dataclass(frozen=True)
class MostDropped:
    steps: int  # so many were dropped by anybody at the most


@dataclass(frozen=True)
class LongestStall:
    seconds: float  # the longest time between two steps of the job, from its first on


Wish = AllAt | Gapless | MostLives | MostDropped | LongestStall


@dataclass(frozen=True)
class Expectation:
    line: int
    text: str
    wish: Wish


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole file."""

    name: str
    groups: int = 3
    """At the start: g0, g1, ..."""
    steps: int = 40
    """The run goes on at least so far."""
    heartbeat_timeout: float | None = None
    """Silence of any kind that the lighthouse takes for death; None: the product's rules."""
    timeout: float = 10.0
    """Of reductions, heals and votes."""
    lease: float | None = None
    """None: the product's. Real processes have no other, so whoever sets it is only simulated."""
    only_simulated: str = ""
    """Why real processes can't do this; empty: they can."""
    story: tuple[Deed, ...] = ()
    expectations: tuple[Expectation, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether links are cut, for which real processes need networks of their own."""
        return any(isinstance(d.action, Cut | Lose) for d in self.story)

    def wanted(self, done: int) -> tuple[str, ...]:
        """The groups that should be there, or on their way, after the first `done` deeds."""
        groups = [f"g{i}" for i in range(self.groups)]
        for deed in self.story[:done]:
            a = deed.action
            gone = isinstance(a, Leave) or (isinstance(a, Kill) and a.target.kind == "supervisor")
            if isinstance(a, Join) or (isinstance(a, Start) and a.target.kind == "supervisor"):
                groups.append(a.group if isinstance(a, Join) else a.target.group)
            elif gone:
                groups.remove(a.group if isinstance(a, Leave) else a.target.group)
        return tuple(groups)

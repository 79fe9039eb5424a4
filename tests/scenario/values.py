"""What a scenario is made of: frozen values. Times are seconds. `tests.scenario.language` reads them from a file."""

from __future__ import annotations

from dataclasses import dataclass

LIGHTHOUSE = "lighthouse"
EVERYBODY = "everybody"


@dataclass(frozen=True)
class AtStep:
    """When the job has committed so many steps."""

    step: int


@dataclass(frozen=True)
class Later:
    """So many seconds after the deed before (0: at the same moment)."""

    seconds: float


@dataclass(frozen=True)
class When:
    """When this group next begins to heal ("heals"), or to reduce gradients ("reduces")."""

    group: str
    does: str


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
    """Of a supervisor or lighthouse that was killed."""

    target: Target


@dataclass(frozen=True)
class Pause:
    target: Target  # no supervisor
    seconds: float


@dataclass(frozen=True)
class Cut:
    """Nothing passes between a group's machine and the other end: a group, the lighthouse, or everybody."""

    group: str
    other: str
    seconds: float


@dataclass(frozen=True)
class Lose:
    """The group's machine loses its power; so many seconds later the group is started again there."""

    group: str
    seconds: float


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
    """Every group that should be there has committed this step (it may have copied it from another)."""

    step: int


@dataclass(frozen=True)
class Gapless:
    """The group has committed every step itself."""

    group: str


@dataclass(frozen=True)
class MostLives:
    """The group was started so often, and not more often."""

    group: str
    lives: int


@dataclass(frozen=True)
class MostDropped:
    """So many steps, and no more, were dropped by anybody."""

    steps: int


@dataclass(frozen=True)
class LongestStall:
    """The longest time between two steps of the job, from its first on."""

    seconds: float


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

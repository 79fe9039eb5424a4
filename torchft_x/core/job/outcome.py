"""Track the supervisors of a job's groups (the *roster*), and decide how the job ends.

A quorum says which groups train together at present; the roster says whether the *job* goes well. The supervisors (one
per group, or one per node of a group) report to it. It decides when the lighthouse process ends and with which code:

* 0 when every group's supervisor finished with 0;
* 1 at the end if a group is lost (its supervisor went silently, or never came) or gave up, even if the others
  finished. The survivors train on, and the exit code says that something needs a look;
* 1 at once, with the rest told to stop, when fewer than `min_replicas` groups can still finish.

Once one group has finished with 0 the job's work is done. A group that was not training with it, or restarts later,
is told to stop: with no group to heal from, it would train the whole job again from the beginning. It stops with 0,
unless it trained to the end with the finished group and failed by itself afterwards, perhaps while saving the model.

The contract with the shell is that of `core.messages`: ``handle(event, now)`` returns effects, `Tick` comes often.
Each `SupervisorHere` is followed by exactly one `SupervisorGone` when that stream ends. For a group over several nodes
the attempts are those of the whole group, as `core.job.multi_node` reports them; all else comes from each node.
Programs beside the groups are in `core.job.sidecars`: they end with the verdict and do not influence it.

If a keeper restarts the supervisors, an absent one is not lost. The keeper reports which supervisors ended for good
and which groups the job has (`GroupsChanged`). A group that the job no longer has is forgotten.

If a job has *several* lighthouses, the one that serves has a roster. If it is cut off from the groups, it must not take
that for the job's end: when all connected supervisors are gone it ends with `DESERTED`, and another one serves.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.job.sidecars import Sidecars
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import (
    AttemptExited,
    AttemptStarted,
    GroupEvent,
    GroupsChanged,
    QuorumIssued,
    RosterEffect,
    RosterEvent,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
    TellStop,
    Verdict,
    is_of_sidecar,
)
from torchft_x.core.presence import Presence
from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING

DESERTED = 75
"""Exit code with which one of several lighthouses ends so that another one serves (EX_TEMPFAIL)."""
_TERMINATED = 143  # exit code of a program that SIGTERM ended
FINISHED = "the job is finished: another group has completed it"


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Configuration of a job. Raises `ConfigError` that names the wrong field."""

    groups: tuple[str, ...]
    """Group ids (REPLICA_GROUP_ID)."""
    min_replicas: int = 1
    """Least number of groups that can finish the job."""
    gone_grace: float = TIMING.gone_grace
    """Seconds for which a supervisor's stream may be away before the group counts as lost."""
    arrive_timeout: float = TIMING.arrive
    """Seconds from the first event within which every supervisor must have come."""
    kept: bool = False
    """Whether a keeper restarts killed supervisors and reports when that ends. Then `gone_grace` and `arrive_timeout`
    don't count."""
    several: bool = False
    """Whether the job has other lighthouses, too."""
    deserted_after: float = TIMING.deserted_after
    """Seconds after which one of several lighthouses ends when all its supervisors have gone."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("groups: a job needs at least one group.")
        if len(set(self.groups)) != len(self.groups):
            raise ConfigError(f"groups: {','.join(self.groups)} names a group twice.")
        if not 1 <= self.min_replicas <= len(self.groups):
            raise ConfigError(
                f"min_replicas is {self.min_replicas}, it must lie between 1 and the number of groups ({len(self.groups)})."
            )
        for name in ("gone_grace", "arrive_timeout", "deserted_after"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be a positive number of seconds.")


class _Group:
    """One group in the roster."""

    def __init__(self, name: str, since: float | None = None) -> None:
        self.name = name
        self.since = since  # when the group was added to the job; None: it belonged to the job from the start
        self.supervisors = [Presence()]  # by node; one per node, once a supervisor has reported the number of nodes
        self.attempt_token = ""  # token of the newest attempt
        self.attempt = 0  # number of the newest attempt
        self.alive = False  # whether that attempt runs or has ended well, as last reported
        self.failures: dict[str, str] = {}  # token of an attempt that failed by itself -> reason
        self.finished: SupervisorFinished | None = None  # first bad end of a supervisor, or last end if all are good
        self.lost = ""  # why the group counts as lost, a clause after its name; empty: it does not
        self.stop_sent: TellStop | None = None  # order that the group was given; repeated when it reconnects

    def of_node(self, node: int) -> Presence:
        """Return the supervisor of a node, of which this may be the first news."""
        while len(self.supervisors) <= node:
            self.supervisors.append(Presence())
        return self.supervisors[node]

    @property
    def here(self) -> bool:
        return any(s.here for s in self.supervisors)

    @property
    def hosts(self) -> str:
        """Hosts of the newest supervisors; empty: none has come yet."""
        return ", ".join(dict.fromkeys(s.host for s in self.supervisors if s.host))

    @property
    def complete(self) -> bool:
        """Whether every supervisor is connected or done."""
        return all(s.here or s.finished for s in self.supervisors)

    @property
    def can_finish(self) -> bool:
        """Whether the group has finished well or still may."""
        return self.finished.code == 0 if self.finished else not self.lost

    @property
    def over(self) -> bool:
        """Whether the group has finished or is lost."""
        return self.finished is not None or bool(self.lost)

    @property
    def trouble(self) -> str:
        """Reason for which the group did not finish, for people; empty if it did or still may."""
        if self.finished is not None:
            host = self.supervisors[self.finished.node].host
            return f"gave up on {host}: {self.finished.sentence}" if self.finished.code else ""
        return self.lost


class JobOutcome:
    """State machine of the roster. Its groups are those of the configuration until a `GroupsChanged` comes."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config  # never changes
        self._groups = {name: _Group(name) for name in config.groups}  # by group id, in the configuration's order
        self.sidecars = Sidecars(config.gone_grace)  # programs beside the groups
        self._started: float | None = None  # time of the first event; `arrive_timeout` counts from it
        self._together: dict[str, frozenset[str]] = {}  # token -> all tokens of the newest quorum with it
        self._alone_since: float | None = None  # end of the last open stream; None: one is open, or none came yet
        self.verdict: Verdict | None = None  # set once, when the job ends

    def __repr__(self) -> str:
        states = ", ".join(f"{n}: {s['state']}" for n, s in self.status().items())
        return f"JobOutcome({states}; verdict {self.verdict.code if self.verdict else 'open'})"

    def status(self) -> dict[str, dict[str, object]]:
        """Return a JSON-able status of each group: state, host, attempt, and why it is lost or gave up."""
        return {
            g.name: {"state": _state(g), "host": g.hosts, "attempt": g.attempt, "trouble": g.trouble}
            for g in self._groups.values()
        }

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def nodes_of(self, group: str) -> int | None:
        """Return the group's number of nodes as its supervisors reported; None: none has come, or no such group."""
        known = self._groups.get(group)
        return len(known.supervisors) if known is not None and known.hosts else None

    def known(self, group: str, node: int) -> tuple[SupervisorHere, AttemptStarted, frozenset[str]] | None:
        """Return the node's newest supervisor, the group's newest attempt, and the tokens of that one's last quorum.

        None: the job has no such group, or has not heard of the node since it has the group.
        """
        g = self._groups.get(group)
        if g is None or node >= len(g.supervisors):
            return None
        here = SupervisorHere(group, g.supervisors[node].host or "?", node, len(g.supervisors))
        begun = AttemptStarted(group, g.attempt, g.attempt_token)
        return here, begun, self._together.get(g.attempt_token, frozenset())

    def handle(self, event: RosterEvent, now: float) -> list[RosterEffect]:
        """Handle one event at `now` (monotonic seconds) and return the effects that the shell must carry out."""
        if self._started is None:
            self._started = now
        if is_of_sidecar(event):
            return self.sidecars.handle(event, now)
        effects: list[RosterEffect] = []
        if isinstance(event, QuorumIssued):
            self._together.update(dict.fromkeys(event.attempt_tokens, event.attempt_tokens))
        elif isinstance(event, Tick):
            effects += self.sidecars.handle(event, now)
        elif isinstance(event, GroupsChanged):
            self._change(event, now)
        else:
            group = self._groups.get(event.group)
            if group is None:
                return self._stranger(event)
            effects += self._hear(group, event, now)
        effects += self._lose_the_absent(now)
        effects += self._stop_the_late()
        effects += self._judge()
        effects += self._desert(now)
        return effects

    # --- hearing -------------------------------------------------------------------------------------------------------

    def _stranger(self, event: GroupEvent) -> list[RosterEffect]:
        if not isinstance(event, SupervisorHere):
            return []
        known = ", ".join(self._groups)
        return [TellStop(event.group, 1, f"group {event.group} is not a group of this job, whose groups are {known}")]

    def _hear(self, group: _Group, event: GroupEvent, now: float) -> list[RosterEffect]:
        if isinstance(event, SupervisorHere):
            return self._arrive(group, event, now)
        if isinstance(event, SupervisorGone):
            group.of_node(event.node).leave(event.stream, now)
            self._alone_since = None if any(g.here for g in self._groups.values()) else now
        elif isinstance(event, AttemptStarted):
            group.attempt, group.attempt_token, group.alive = event.attempt, event.attempt_token, True
        elif isinstance(event, AttemptExited):
            if event.code > 0 and event.code != _TERMINATED:
                group.failures[event.attempt_token] = event.reason
            if event.attempt_token == group.attempt_token:
                group.alive = event.code == 0  # after a good end the supervisor is about to report that it is done
        elif isinstance(event, SupervisorFinished):
            self._finish(group, event)
        return []

    def _change(self, event: GroupsChanged, now: float) -> None:
        """Take the keeper's list of groups and ends. A supervisor's own report of its end takes precedence."""
        self._groups = {name: self._groups.get(name) or _Group(name, now) for name in event.groups}
        for end in event.ended:
            group = self._groups.get(end.group)
            if group is None or group.over:
                continue
            group.of_node(end.node)
            if end.code == 0:
                self._finish(group, end)
            else:
                group.lost = f"is lost: {end.sentence}"

    def _finish(self, group: _Group, event: SupervisorFinished) -> None:
        """Record a supervisor's end. The group finishes when all its supervisors have, or fails when one gives up."""
        group.of_node(event.node).finished = event.code, event.sentence
        if group.finished is None and (event.code != 0 or all(s.finished for s in group.supervisors)):
            group.finished = event
            group.alive = False

    def _arrive(self, group: _Group, event: SupervisorHere, now: float) -> list[RosterEffect]:
        if self._deserted:  # perhaps this lighthouse was cut off: restart the grace of the others
            for other in (s for g in self._groups.values() for s in g.supervisors if s.away_since is not None):
                other.away_since = now
        group.of_node(event.nodes - 1)
        group.of_node(event.node).arrive(event.stream, event.host, now)
        self._alone_since = None
        effects: list[RosterEffect] = []
        if group.lost and group.complete and self.verdict is None:
            group.lost = ""
            effects.append(Note("joined", f"The supervisor of group {group.name} is back, on {event.host}."))
        if self.verdict is not None and group.finished is None:
            effects.append(TellStop(group.name, self.verdict.code, self.verdict.sentence))
        elif group.finished is not None:
            again = f"group {group.name} has finished already, with code {group.finished.code}"
            effects.append(TellStop(group.name, group.finished.code, again))
        elif group.stop_sent is not None:
            effects.append(group.stop_sent)
        return effects

    # --- deciding ------------------------------------------------------------------------------------------------------

    @property
    def _deserted(self) -> bool:
        """Whether all supervisors have gone and none finished, so that this lighthouse may be the one cut off."""
        done = any(g.finished is not None and g.finished.code == 0 for g in self._groups.values())
        return self.config.several and self._alone_since is not None and not done

    def _lose_the_absent(self, now: float) -> list[RosterEffect]:
        notes: list[RosterEffect] = []
        if self._deserted:
            return notes
        for g in self._groups.values():
            if g.over or g.complete:
                continue
            g.lost = next((why for n in range(len(g.supervisors)) if (why := self._absence(g, n, now))), "")
            if g.lost:
                notes.append(Note("member_lost", _sentence(f"group {g.name} {g.lost}")))
        return notes

    def _absence(self, group: _Group, node: int, now: float) -> str:
        """Return why the node's supervisor counts as lost, a clause after its group's name; empty: it does not."""
        supervisor = group.supervisors[node]
        which = "its supervisor" if len(group.supervisors) == 1 else f"its supervisor of node {node}"
        if supervisor.finished is not None or self.config.kept:
            return ""
        if supervisor.host:
            gone = supervisor.absent_for(now) >= self.config.gone_grace
            return f"is lost: {which} on {supervisor.host} is gone without a word" if gone else ""
        since = self._started if group.since is None else group.since
        if since is not None and now - since >= self.config.arrive_timeout:
            return f"is lost: {which} has not come within {self.config.arrive_timeout:g} s"
        return ""

    def _stop_the_late(self) -> list[RosterEffect]:
        """Stop the groups that were not training with a group that has finished with 0, or have restarted since.

        The last quorum of the *finisher* counts, not the newest one: while a finisher's process ends, a restarted group
        may already be alone in a quorum of its own. A finisher that was in no quorum (a script without a Manager, a
        client of torchft) has nothing in common with the other groups and stops none.
        """
        done = [
            g for g in self._groups.values() if g.finished is not None and g.finished.code == 0 and g.stop_sent is None
        ]
        finishers = [g.attempt_token for g in done]
        known = [self._together[token] for token in finishers if token in self._together]
        if self.verdict is not None or not known:
            return []
        with_them = frozenset().union(*known)
        stops: list[RosterEffect] = []
        for g in self._groups.values():
            training = g.alive and g.attempt_token in with_them
            if g.here and not g.over and not training and g.stop_sent is None:
                failed = next((why for token, why in g.failures.items() if token in with_them), "")
                text = f"{failed}, after it had trained to the end with the others (was it saving the model?)"
                g.stop_sent = TellStop(g.name, 1, text) if failed else TellStop(g.name, 0, FINISHED)
                stops.append(g.stop_sent)
        return stops

    def _judge(self) -> list[RosterEffect]:
        if self.verdict is not None:
            return []
        groups = list(self._groups.values())
        able = sum(g.can_finish for g in groups)
        if able >= self.config.min_replicas and not all(g.over for g in groups):
            return []
        troubles = _together(groups)
        if not troubles:
            self.verdict = Verdict(0, f"All {len(groups)} groups finished.")
        elif able >= self.config.min_replicas:
            self.verdict = Verdict(1, _sentence(f"{able} of {len(groups)} groups finished, but {troubles}"))
        else:
            why = f"only {able} of {len(groups)} groups can still finish and min_replicas is {self.config.min_replicas}"
            self.verdict = Verdict(1, _sentence(f"The job failed, {why}: {troubles}"))
        code, sentence = self.verdict.code, self.verdict.sentence
        rest = [g for g in groups if g.finished is None and g.here]  # some nodes of a lost group may be connected
        stops = [TellStop(g.name, code, sentence) for g in rest]
        return [*stops, *self.sidecars.end(sentence), self.verdict]

    def _desert(self, now: float) -> list[RosterEffect]:
        c, since = self.config, self._alone_since
        if self.verdict is not None or not self._deserted or since is None or now - since < c.deserted_after:
            return []
        self.verdict = Verdict(
            DESERTED,
            f"No supervisor has been at this lighthouse for {c.deserted_after:g} s: another one shall serve.",
        )
        return [self.verdict]


def _state(group: _Group) -> str:
    if group.finished is not None:
        return "finished" if group.finished.code == 0 else "failed"
    if group.lost:
        return "lost"
    if not all(s.host for s in group.supervisors):
        return "awaited"
    return "running" if group.alive else "starting"


def _together(groups: list[_Group]) -> str:
    """Return each trouble once, with its groups: all groups with the same typo in their script report the same."""
    by_trouble: dict[str, list[str]] = {}
    for g in groups:
        if g.trouble:
            by_trouble.setdefault(g.trouble.rstrip("."), []).append(f"group {g.name}")
    return "; ".join(f"{' and '.join(names)} {trouble}" for trouble, names in by_trouble.items())


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."

"""Which announced groups have nobody here yet: kept while members come and go, so that asking costs nothing."""

from __future__ import annotations

from collections import Counter

from torchft_x.core.types import group_number, group_of


class AnnouncedGroups:
    """A group is announced by its supervisor under its id or its number. Its members are here, or not."""

    def __init__(self) -> None:
        self._announced: set[str] = set()  # groups whose supervisor is here
        self._here: set[str] = set()  # replica ids
        self._groups: Counter[str] = Counter()  # id or number of a group -> members of it that are here
        self.absent: set[str] = set()  # announced, and nobody is here

    def __repr__(self) -> str:
        return f"<AnnouncedGroups {len(self._here)} here, absent={sorted(self.absent)}>"

    @property
    def announced(self) -> frozenset[str]:
        return frozenset(self._announced)

    def announce(self, group: str, present: bool) -> None:
        """A supervisor has come, or gone."""
        (self._announced.add if present else self._announced.discard)(group)
        (self.absent.add if present and not self._groups[group] else self.absent.discard)(group)

    def recount(self, replica_id: str, here: bool) -> None:
        """Whether this member is here now."""
        if here is (replica_id in self._here):
            return
        (self._here.add if here else self._here.discard)(replica_id)
        for group in {group_of(replica_id), str(group_number(replica_id))}:
            self._groups[group] += 1 if here else -1
            if here:
                self.absent.discard(group)
            elif not self._groups[group]:
                del self._groups[group]
                if group in self._announced:
                    self.absent.add(group)

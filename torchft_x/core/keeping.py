"""What the next lighthouse at this place must know, noticed as it changes (R8c). The shell writes it down."""

from __future__ import annotations

from torchft_x.core.legacy import Kin, Legacy
from torchft_x.core.liveness import Roll
from torchft_x.core.messages import Keep, LighthouseEffect
from torchft_x.core.tenure import Tenure


class Keeping:
    """Part of the lighthouse; shares its roll and tenure."""

    def __init__(self, roll: Roll, tenure: Tenure) -> None:
        self._roll = roll  # every member heard of
        self._tenure = tenure  # the present quorum
        self.hellos = 0  # so far: with each the kin may change
        self._kept = (0, 0)  # quorum and grant that were kept last
        self._kin: tuple[Kin, ...] = ()  # kept with them; a new tuple only when something has changed in it
        self._kin_as_of = (0, 0)  # config id and hellos at that time

    def __repr__(self) -> str:
        return f"<Keeping {self._kept}>"

    def look(self) -> list[LighthouseEffect]:
        """What is to be kept, when it is more than was kept. Comes before what it speaks of."""
        cur, granted = self._tenure.current, self._tenure.granted_through
        if cur is None or (cur.id, granted) == self._kept:
            return []
        if cur.id != self._kept[0] and (cur.config_id, self.hellos) != self._kin_as_of:
            self._kin_as_of = (cur.config_id, self.hellos)
            records = self._roll.of(cur.members)
            self._kin = tuple(Kin(r.replica_id, r.life, r.boot_id, r.runs_on) for r in records if not r.unary)
        self._kept = (cur.id, granted)
        return [Keep(Legacy(cur, granted, self._kin, self._tenure.chain.open))]

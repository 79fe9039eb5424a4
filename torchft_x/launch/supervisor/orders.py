"""What a person has asked of this supervisor's group through the lighthouse (core/job/orders.py)."""

from __future__ import annotations

from collections.abc import Callable


class TakenOrders:
    """Set by the client's thread, each a whole value; read on the main thread, which `wake` wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.rests = False  # drained: no life is to run
        self._kill = ("", "")  # the life that is to be killed, and why
        self._wake = wake

    def take(self, kind: str, life: str, sentence: str) -> None:
        """From the client's thread. What this version does not know is left."""
        if kind == "kill":
            self._kill = (life, sentence)
        elif kind in ("drain", "resume"):
            self.rests = kind == "drain"
        self._wake()

    def why_kill(self, life: str) -> str:
        """Why this life is to be killed; '': it isn't."""
        asked, sentence = self._kill
        return sentence if asked and asked == life else ""

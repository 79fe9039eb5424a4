"""Error feedback: adds the quantisation error of a fragment's pseudo-gradient to the next one.

For each committed exchange: ``applied = sum over the members of (pseudo-gradient * share + carried - error)``, and the
error is carried to the next exchange. Over many exchanges the sum of the applied values is the sum of the
pseudo-gradients, except for the error carried at the end, which is bounded. So errors don't add up. The error has both
parts of a quantised reduction: that of encoding a member's values, and that of encoding their sum (carried by the
member that encoded it).

Seide et al., "1-Bit SGD" (2014); Karimireddy et al., arXiv 1901.09847; with both errors, Tang et al., arXiv 1905.05957.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ErrorFeedback:
    """Carried quantisation error of one fragment on one rank. It is in no state: a rank that heals or resumes begins with zeros.

    Values are float32 in units of the sent values (times this group's share), one flat tensor for each flat buffer of
    an exchange.

    Args:
        device: device that keeps one float32 copy of the fragment between exchanges (None: the CPU). During an exchange
            the sending device holds another copy.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._carried: list[torch.Tensor] = []  # error of the last committed exchange; empty: zeros
        self._lost: list[torch.Tensor] | None = None  # error of the newest attempt of the current exchange
        self._sends = False  # whether this rank's values count in that attempt

    @torch.no_grad()
    def start(self, flats: Sequence[torch.Tensor], *, sends: bool) -> list[torch.Tensor]:
        """Begin an attempt to send `flats`. Return a tensor for each of them, to which the reduction adds its error.

        With `sends` the values count, and each tensor must go through `add` once before it is reduced. Otherwise the values
        are left alone, and the carried error stays for the next exchange.
        """
        self._sends = sends
        if sends:
            self._lost = [torch.empty_like(flat, dtype=torch.float32) for flat in flats]
        else:
            self._lost = [torch.zeros_like(flat, dtype=torch.float32) for flat in flats]
            for lost, carried in zip(self._lost, self._carried, strict=bool(self._carried)):
                lost.copy_(carried)
        return self._lost

    @torch.no_grad()
    def add(self, number: int, values: torch.Tensor) -> None:
        """Add the carried error to `values`, which are flat buffer `number`."""
        if self._lost is None or not self._sends:
            return
        lost = self._lost[number]
        if not self._carried:
            lost.zero_()
            return
        carried = self._carried[number].to(values.device)
        if values.dtype == torch.float32:
            values.add_(carried)
            lost.zero_()
        else:  # rounding to a narrower type is part of the error
            torch.add(carried, values, out=lost)
            values.copy_(lost)
            lost.sub_(values)

    @torch.no_grad()
    def commit(self) -> None:
        """Carry the error of the last attempt, because the exchange is committed.

        A value that isn't finite is carried as zero: it has broken the weights already, and would outlive their repair.
        """
        if self._lost is not None:
            self._carried = [t.nan_to_num_(0.0, 0.0, 0.0).to(self._device) for t in self._lost]
        self._lost = None

    def drop(self) -> None:
        """Forget the attempts of an exchange that was not committed, so that the carried error stays."""
        self._lost = None

    def clear(self) -> None:
        """Set the carried error to zero, because the weights are another group's."""
        self._carried, self._lost = [], None

"""Error feedback: what a quantised exchange left out of a fragment's pseudo-gradient goes into the next one.

For each exchange that is committed: ``applied = sum over the members of (pseudo-gradient * share + carried - left out)``, and
what is left out is carried next. So over many exchanges the sum of what was applied is the sum of the pseudo-gradients, but
for what is carried at the end, which is bounded: the error doesn't add up. Both errors of a quantised reduction are in it, what
encoding a member's values lost, and what encoding their sum lost (carried by the member that did it).

Seide et al., "1-Bit SGD" (2014); Karimireddy et al., arXiv 1901.09847; with both errors, Tang et al., arXiv 1905.05957.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchft_x.errors import TransferError


class ErrorFeedback:
    """Of one fragment on one rank. It is this rank's own: it never heals, and who heals begins with nothing.

    Values are in units of what is sent (times this group's share), float32, one flat tensor for each flat buffer of an
    exchange.

    Args:
        device: where they are kept between exchanges: one float32 copy of the fragment there. During one another copy is
            held, on the device it is sent from.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._carried: list[torch.Tensor] = []  # committed; empty: zeros
        self._lost: list[torch.Tensor] | None = None  # of the newest attempt of the exchange in hand
        self._sends = False  # in that attempt

    @torch.no_grad()
    def start(self, flats: Sequence[torch.Tensor], *, sends: bool) -> list[torch.Tensor]:
        """Begin an attempt to send `flats`. Returns where the reduction adds what it leaves out, for each of them.

        `sends`: the values count, and each goes through `add` once before it is reduced. Else they are left alone, and what is
        carried stays for the exchange after.
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
    def add(self, number: int, values: torch.Tensor, first: int) -> None:
        """Add what is carried to what is sent: `values` of flat buffer `number`, the first of which is its `first`."""
        if self._lost is None or not self._sends:
            return
        lost = self._lost[number][first : first + values.numel()]
        if not self._carried:
            lost.zero_()
            return
        carried = self._carried[number][first : first + values.numel()]
        if values.dtype == torch.float32:
            values.add_(carried.to(values.device))
            lost.zero_()
        else:  # a narrower type rounds, which counts as left out
            torch.add(carried.to(values.device), values, out=lost)
            values.copy_(lost)
            lost.sub_(values)

    @torch.no_grad()
    def commit(self) -> None:
        """The exchange is committed: what its last attempt left out is carried from here on. A value that isn't finite is
        carried as zero: it has broken the weights already, and would outlive their repair."""
        if self._lost is not None:
            self._carried = [t.nan_to_num_(0.0, 0.0, 0.0).to(self._device) for t in self._lost]
        self._lost = None

    def drop(self) -> None:
        """It is not, so nothing of it was sent."""
        self._lost = None

    def clear(self) -> None:
        """Nothing is carried: the weights are another group's now."""
        self._carried, self._lost = [], None

    # --- a checkpoint of one's own ----------------------------------------------------------------------------------

    def state(self) -> list[torch.Tensor]:
        return list(self._carried)

    def load(self, state: list[torch.Tensor], numel: int) -> None:
        """`numel`: values of the fragment. Raises `TransferError` if it is not the state of such a fragment."""
        good = isinstance(state, list) and all(isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in state)
        if not good or (state and sum(t.numel() for t in state) != numel):
            raise TransferError("the checkpoint's error feedback is that of another fragment; cut the model as it was.")
        self._carried, self._lost = [t.to(self._device, copy=True) for t in state], None

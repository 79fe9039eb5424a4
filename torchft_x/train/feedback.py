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


class Feedback:
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

    @torch.no_grad()
    def start(self, flats: Sequence[torch.Tensor], *, sends: bool) -> list[torch.Tensor]:
        """Begin an attempt: add what is carried to what is sent. Returns where the reduction adds what it leaves out.

        `sends`: the values count. Else they are left alone, and what is carried stays for the exchange after.
        """
        self._lost = []
        for i, flat in enumerate(flats):
            lost = torch.zeros_like(flat, dtype=torch.float32)
            self._lost.append(lost)
            if not self._carried:
                continue
            lost.copy_(self._carried[i])
            if sends and flat.dtype == torch.float32:
                flat.add_(lost)
                lost.zero_()
            elif sends:  # a narrower type rounds, which counts as left out
                lost.add_(flat)
                flat.copy_(lost)
                lost.sub_(flat)
        return self._lost

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

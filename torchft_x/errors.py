"""Exceptions of torchft_x that users see. A package may define further kinds of them beside the code that raises these.

::

    TorchftXError
    ├── ConfigError(ValueError)        an error of the user; a retry fails again
    │   └── AddressError               a malformed or unresolvable address
    ├── DeadlineError(TimeoutError)    a wait ended at its deadline; a retry may succeed
    ├── UnreachableError(RuntimeError) no process answered at an address; a retry may succeed
    ├── RefusedError(RuntimeError)     the other side refused a request; a retry fails again
    │   ├── TokenError                 wrong or missing token
    │   ├── StrangerError              another program is at the address
    │   └── FencedError                a newer attempt of this group is running
    ├── CollectiveError(RuntimeError)  a collective failed; the step is dropped and the next quorum repairs it
    ├── TransferError(RuntimeError)    state could not be moved; healing is retried
    │   ├── LeafError(TypeError)       a leaf of the state dict can't be sent; names its path
    │   └── UnsavedError               the last checkpoint of a training could not be written
    └── StepError(RuntimeError)        training can't go on (e.g. too many failed commits in a row)
        └── FaultyError                this group computes other bits than the others; it is not restarted

Each message is one sentence that names what failed, where, and what to do.
"""

from __future__ import annotations


class TorchftXError(Exception):
    """Base class of all exceptions of torchft_x."""

    exit_code = 2
    """Exit code of a command of torchft_x that ends with the error. Nobody repeats a command, so 2 also stands for an error
    that may go away. A script has the codes of `train.setup.excepthook`, of which 1 lets the supervisor restart it."""


class ConfigError(TorchftXError, ValueError):
    """An error of the user, such as a bad argument or file."""


class AddressError(ConfigError):
    """A malformed or unresolvable address."""


class DeadlineError(TorchftXError, TimeoutError):
    """A wait ended at its deadline."""


class UnreachableError(TorchftXError, RuntimeError):
    """No process answered at an address."""


class RefusedError(TorchftXError, RuntimeError):
    """The other side refused a request."""


class TokenError(RefusedError):
    """Wrong or missing token."""


class StrangerError(RefusedError):
    """Another program is at the address."""


class FencedError(RefusedError):
    """A newer attempt of this group is running."""


class CollectiveError(TorchftXError, RuntimeError):
    """A collective failed or was released because a member is lost.

    `suspects` are the known replica ids of the members whose connection broke. They are a hint: a member may also have
    closed its connection because it was ordered to, or because a third member failed.
    """

    def __init__(self, message: str, suspects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.suspects = suspects


class TransferError(TorchftXError, RuntimeError):
    """State could not be moved between processes."""

    torn: bool = False  # whether the caller's tensors for receiving were already partly overwritten


class LeafError(TransferError, TypeError):
    """A leaf of a state dict can't be sent. The message names its path."""


class UnsavedError(TransferError):
    """The last durable checkpoint could not be written. A script that ends with it has exit code 73."""


class StepError(TorchftXError, RuntimeError):
    """Training can't go on."""


class FaultyError(StepError):
    """This group computes wrong bits, probably because of its hardware. A script that ends with it has exit code 71."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type: torch appends pages of stack traces."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

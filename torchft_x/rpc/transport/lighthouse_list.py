"""Whether a client and a lighthouse mean the same list: groups that don't agree on it could train apart.

On the wire a place is 1 for the first lighthouse of a list, 2 for the next, and 0 for one that is alone.
"""

from __future__ import annotations

from torchft_x import env


def of_lighthouse(place: int | None) -> int:
    """As on the wire. `place`: from 0; None: it is the only one."""
    return 0 if place is None else place + 1


def mismatch(url: str, *, expected: int, found: int) -> str:
    """For a client whose list says that the lighthouse there is another one than it is. Both as on the wire."""
    if found == expected:
        return ""
    if expected == 0:
        return lone_client(f"the lighthouse at {url}", found)
    if found == 0:
        return (
            f"The lighthouse at {url} was started without --place, as the only one, but it is number {expected - 1} of "
            f"those in {env.LIGHTHOUSE} here (counted from 0): start it with --place {expected - 1} and a --state_file."
        )
    return (
        f"The lighthouse at {url} has --place {found - 1}, but is number {expected - 1} of those in {env.LIGHTHOUSE} here "
        "(counted from 0): give the same list, in the same order, everywhere, and each lighthouse its place in it."
    )


def lone_client(who: str, found: int) -> str:
    """For a client that knows of one lighthouse, and that is one of several."""
    return (
        f"{who[:1].upper()}{who[1:]} is number {found - 1} of several (--place, counted from 0), and only this one is known "
        f"here: set {env.LIGHTHOUSE} to the whole list, everywhere, or start the lighthouse without --place."
    )

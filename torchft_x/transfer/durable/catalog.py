"""Lists the checkpoints below a URL, and decides which of them are complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.names import MANIFEST, Name
from torchft_x.transfer.durable.sealed import GO_ON, DamagedError, Manifest, TornError
from torchft_x.transfer.durable.store import MissingError, Store
from torchft_x.transfer.format.layout import Layout

_TRIES = 10  # most reads of the list of checkpoints, while it keeps changing


def newest(store: Store) -> Name | None:
    """Return the newest complete checkpoint, or None.

    Raise `DamagedError` if a newer one was complete and is damaged: continuing silently from an older one would
    discard steps. Raise `TransferError` if the storage fails or a newer version wrote it.
    """
    before: list[Name] | None = None
    for _ in range(_TRIES):
        found = all_of(store)
        complete = next((name for name in reversed(found) if is_complete(store, name)), None)
        if complete is not None or found == before:
            return complete
        before = found  # a complete one may have been removed meanwhile, when a newer one was finished
    return None


def all_of(store: Store) -> list[Name]:
    """Return all checkpoints, complete or not, oldest first."""
    return sorted(name for folder in store.children() if (name := names.parse(folder)) is not None)


def newest_undamaged(store: Store) -> Name | None:
    """Return the newest complete checkpoint, ignoring damaged ones: for processes that write a newer one."""
    return next(iter(complete_ones(store, all_of(store), most=1)), None)


def complete_ones(store: Store, among: Iterable[Name], *, most: int) -> list[Name]:
    """Return the newest `most` complete checkpoints, newest first, without damaged ones.

    Raise `TransferError` if the storage fails, or for a checkpoint of a newer format.
    """
    found: list[Name] = []
    for name in sorted(among, reverse=True):
        if len(found) == most:
            break
        with contextlib.suppress(DamagedError):
            if is_complete(store, name):
                found.append(name)
    return found


def is_complete(store: Store, name: Name) -> bool:
    """Return whether a checkpoint has a whole manifest, and all files that the manifest names, at their length.

    Raise `DamagedError` if there is a manifest but a file is missing or has another length: the manifest is written
    last and removed first.
    """
    sizes = store.children(str(name))
    if MANIFEST not in sizes:
        return False
    try:
        manifest, _ = read_manifest(store, name)
    except (MissingError, TornError):  # a store may list a file that no longer exists
        return False
    expected: dict[str, int | None] = {names.data_file(rank): n for rank, (_, n) in enumerate(manifest.shards)}
    expected |= {file: sizes.get(file) for file in map(names.index_file, range(manifest.ranks))}
    wrong = next((file for file, n in expected.items() if file not in sizes or sizes[file] != n), None)
    if wrong is None:
        return True
    if MANIFEST not in store.children(str(name)):  # it was just being removed
        return False
    has = f"has {sizes[wrong]} of {expected[wrong]} bytes" if wrong in sizes else "is missing"
    raise DamagedError(f"checkpoint {store.shown}: {name}/{wrong} {has}; {GO_ON}.")


def read_manifest(store: Store, name: Name) -> tuple[Manifest, Layout]:
    data = store.read(f"{name}/{MANIFEST}", 0, sealed.MAX_SEALED_BYTES)
    with store.about(f"{name}/{MANIFEST}"):
        manifest, layout = sealed.open_manifest(data)
        if manifest.save != str(name) or manifest.step != name.step:
            raise TransferError(f"it is the manifest of {manifest.save[:100]}.")
    return manifest, layout

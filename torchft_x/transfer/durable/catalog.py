"""Which checkpoints are below a URL, and which of them are complete."""

from __future__ import annotations

from collections.abc import Iterable

from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.names import MANIFEST, Name
from torchft_x.transfer.durable.sealed import Manifest, TornError
from torchft_x.transfer.durable.store import MissingError, Store
from torchft_x.transfer.format.layout import Layout


def newest(store: Store) -> Name | None:
    """The newest complete checkpoint. Raises `TransferError`."""
    found = [n for folder in store.children() if (n := names.parse(folder)) is not None]
    return next(iter(complete_ones(store, found, most=1)), None)


def complete_ones(store: Store, among: Iterable[Name], *, most: int) -> list[Name]:
    """The newest `most` complete ones, newest first: with a whole manifest, and with all files that it names, at their
    length. Raises `TransferError` if the storage fails, or for one of a newer format."""
    found: list[Name] = []
    for name in sorted(among, reverse=True):
        if len(found) == most:
            break
        sizes = store.children(str(name))
        if MANIFEST not in sizes:
            continue
        try:
            manifest, _ = read_manifest(store, name)
        except (MissingError, TornError):  # a store may list what isn't there
            continue
        data = [sizes.get(names.data_file(rank)) for rank in range(manifest.ranks)]
        if data == [n for _, n in manifest.shards] and all(names.index_file(r) in sizes for r in range(manifest.ranks)):
            found.append(name)
    return found


def read_manifest(store: Store, name: Name) -> tuple[Manifest, Layout]:
    data = store.read(f"{name}/{MANIFEST}", 0, sealed.MAX_SEALED_BYTES)
    with store.about(f"{name}/{MANIFEST}"):
        manifest, layout = sealed.open_manifest(data)
        if manifest.save != str(name) or manifest.step != name.step:
            raise TransferError(f"it is the manifest of {manifest.save[:100]}.")
    return manifest, layout

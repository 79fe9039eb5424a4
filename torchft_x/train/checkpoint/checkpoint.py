"""Durable checkpoints of a fault-tolerant job: the class that a script uses."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchft_x.core.training.save_duty import SaveDuty
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError, TorchftXError, TransferError, UnsavedError
from torchft_x.timing import SAVE
from torchft_x.train.checkpoint import parts as of_parts
from torchft_x.train.checkpoint.claiming import Claiming
from torchft_x.train.checkpoint.saving import Saving
from torchft_x.transfer.durable import names
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import freeze, room_for
from torchft_x.transfer.durable.store import MissingError, Store

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

log = logging.getLogger(__name__)

_TRIES = 5  # attempts to read a checkpoint, because other groups may remove it during the read
_LONGEST = 500  # characters of a part's error: torch names each key that a module lacks
_LOOPBACK = ("//localhost", "//127.", "//[::1]")


class Checkpoint:
    """Saves the state of the job at a URL of fsspec, beside the training, and resumes from it.

    ::

        checkpoint = Checkpoint(manager, "s3://bucket/run", {"model": model, "optim": adamw, "data": loader}, every=100)
        checkpoint.resume()
        while manager.current_step() < steps:
            ...
            optimizer.step()
            checkpoint.step()
        checkpoint.finish()
        manager.shutdown()

    All ranks of all groups must make these calls. One group writes, each of its ranks its own shards; when it is gone
    the next group takes over. A job may resume with other numbers of groups and ranks, and with models sharded
    otherwise.

    Args:
        manager: this rank's Manager. Its step is saved too.
        url: URL of a folder, one for each job.
        parts: objects with ``state_dict()`` and ``load_state_dict()``, by name: models, optimizers, schedulers, the
            data's position. Values other than DTensors must be equal on all ranks of a group; rank 0's are saved.
        every: steps between two saves.
        keep: number of complete checkpoints that are kept.
        timeout: limit for a save, including the wait for the other ranks, in seconds or as a timedelta.

    Raises:
        ConfigError: the URL can't be used, or a part can't be saved.
    """

    def __init__(
        self,
        manager: Manager,
        url: str,
        parts: Mapping[str, Any],
        *,
        every: int = 1000,
        keep: int = 2,
        timeout: Seconds = SAVE,
    ) -> None:
        if every < 1 or keep < 1:
            raise ConfigError(f"Checkpoint: every is {every} and keep {keep}; both are at least 1.")
        of_parts.check(parts)
        self._manager = manager
        self._parts = dict(parts)
        self._timeout = seconds(timeout)
        self._store = Store(url)
        self._connection = manager.context.connection
        options = manager.context.options
        self._rank, self._ranks = options.group_rank, options.group_world_size
        self._duty = SaveDuty(every)
        self._step = manager.current_step()  # last step that `step` handled
        self._saved_step: int | None = None  # last step whose save was started, or that was resumed from
        self._joins = self._connection.others_train  # until the first step; the others' state is copied then
        self._prepared = False  # whether memory for the first shard was requested
        job = _job_of(options.lighthouse or "")
        self._claiming = Claiming(self._store, job) if self._rank == 0 else None
        events = manager.context.events
        self._saving = Saving(self._store, self._claiming, events, job=job, keep=keep, timeout=self._timeout)

    def __repr__(self) -> str:
        return f"<Checkpoint {self._store.shown}, {self._duty!r}>"

    @property
    def url(self) -> str:
        """URL of the checkpoints, without passwords."""
        return self._store.shown

    # --- resuming -----------------------------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Load the newest complete checkpoint, if there is one, into the parts and the Manager. Return whether it did.

        If other groups train already, their state is newer and is copied in the first step. Models and optimizers are
        then not read, and the result is False.

        Call it before the first step, on all ranks. Raises `ConfigError` if the checkpoint can't be read, is damaged,
        or is of another model.
        """
        copied = [name for name, part in self._parts.items() if of_parts.is_copied(part)] if self._joins else []
        read = {name: part for name, part in self._parts.items() if name not in copied}
        if self._joins and not read:
            return False
        for attempt in range(_TRIES):
            name = self._choose(attempt)
            if name is None:
                return False
            with self._told(name):
                state = self._load(name, copied)
                if not self._connection.all_fine(f"checkpoint {attempt} read", state is not None, self._timeout):
                    continue  # others save meanwhile: they completed a newer one and removed this one
                assert state is not None
                of_parts.put_back(read, state["parts"])
                if self._joins:
                    return False
                self._manager.load_state_dict(state["torchft"])
            self._step = self._saved_step = self._manager.current_step()
            return True
        raise ConfigError(
            f"checkpoint {self._store.shown}: {_TRIES} checkpoints in a row were removed while they were read, as newer "
            "ones came; keep more, or save less often."
        )

    def _load(self, name: names.Name, left_out: Collection[str]) -> Any:
        """Return the state of a checkpoint, without the parts in `left_out`; None if it was removed."""
        try:
            saved = Saved(self._store, name)
            shapes = saved.shapes()
            if not isinstance(shapes, dict) or set(shapes) != {"torchft", "parts"}:
                raise TransferError("it was not saved by a Checkpoint.")
            return saved.load({"parts": of_parts.places(self._parts, shapes["parts"], left_out=left_out)})
        except MissingError:
            return None

    @contextlib.contextmanager
    def _told(self, name: names.Name) -> Iterator[None]:
        """Turn any error of reading a checkpoint into a `ConfigError` of one sentence that names the checkpoint."""
        try:
            yield
        except Exception as e:  # a part's load_state_dict may raise any error
            lines = [line.strip() for line in str(e).strip().splitlines()] or [repr(e)]
            reason = " ".join(lines[:2])[:_LONGEST] if lines[0].endswith(":") else lines[0]
            known = isinstance(e, TransferError) and reason.startswith("checkpoint ")
            where = "" if known else f"checkpoint {self._store.shown}/{name}: "
            raise ConfigError(f"{where}{reason}") from e

    def _choose(self, attempt: int) -> names.Name | None:
        """Return, on all ranks, the newest checkpoint that rank 0 found, if there is one. Raises `ConfigError`."""
        said = None
        if self._rank == 0:
            try:
                found = newest(self._store)
                said = {"name": "" if found is None else str(found)}
            except TorchftXError as e:
                said = {"error": str(e)}
        answer = self._connection.agree(f"checkpoint {attempt}", said, self._timeout)
        if "error" in answer:
            raise ConfigError(answer["error"])
        return names.parse(answer["name"])

    # --- saving -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Save if the step was committed, a save is due and this group is the one that saves.

        Call it after each ``optimizer.step()``. It freezes the state and writes it beside the training. A save that
        fails causes a warning. Raises `ConfigError` if another job writes at the URL, or nothing may be written at the
        URL, and `LeafError` for a state that can't be saved.
        """
        step = self._manager.current_step()
        if self._claiming is not None and self._claiming.refused:
            raise ConfigError(self._claiming.refused)
        if step == self._step:
            return
        self._step = step
        if self._joins:
            self._joins = False
            self._check_copied(step)
        due = self._duty.committed(step, self._manager.participating_rank())
        if self._claiming is not None:
            self._claiming.be_on_duty(self._duty.first)
        if due:
            self._save(step)
        elif self._duty.first and not self._prepared:
            self._prepared = True
            self._saving.prepare(room_for(self._state(), rank=self._rank))

    def _check_copied(self, step: int) -> None:
        """Raise `TransferError` if the others ended before this group copied their state and a checkpoint is newer.

        Called after the first step of a group that joined a running job and so has read no model. Started again, the
        group reads the checkpoint.
        """
        if step > 1 or self._rank != 0:
            return
        found = newest(self._store)
        if found is not None and found.step > step:
            raise TransferError(
                f"the other groups were gone before this one had copied their state; {self._store.shown}/{found} is further, "
                "and is read when this group starts again."
            )

    def finish(self) -> None:
        """Save the last step, if this group is the one that saves, and wait for the save.

        Call it before ``manager.shutdown()``. Raises `UnsavedError` if the step can't be saved; uncaught, that error
        ends the process with exit code 73.
        """
        try:
            if self._duty.first:
                with self._manager.planned_pause("the last checkpoint", seconds=self._timeout + 60.0):
                    self._save_last()
        finally:
            self._saving.close()
            self._release(over=self._duty.first)

    def leave(self) -> None:
        """Save the last step before the training's end (SIGTERM for a cancelled job or a time limit), and wait for it.

        Saves only if this group is the one that saves. Call it after ``manager.shutdown(finished=False)``, so that the other groups don't wait meanwhile. A save that
        is late causes only a warning, because the process is soon killed.
        """
        try:
            if self._duty.first:
                # The supervisor then waits as long as the signal's sender.
                self._manager.context.status.pause(self._timeout)
                self._save_last()
        except TorchftXError as e:
            log.warning("%s", e)
        finally:
            self.close()

    def close(self) -> None:
        """Stop without saving, and give up a running save. `finish` and `leave` close the checkpoint themselves."""
        self._saving.close()
        self._release(over=False)

    def _save_last(self) -> None:
        """Save the last step and wait for it. Raises `UnsavedError`."""
        step, limit = self._manager.current_step(), self._timeout
        if not self._saving.wait(limit):
            raise UnsavedError(
                f"the last checkpoint was not saved: that of step {self._saving.busy} is not written yet."
            )
        if step != self._saved_step or self._saving.error is not None:
            self._save(step)
        if not self._saving.wait(limit):
            raise UnsavedError(f"the last checkpoint was not saved: it was not written within {limit:g} s.")
        if self._saving.error is not None:
            raise UnsavedError(f"the last checkpoint was not saved: {self._saving.error}")

    def _save(self, step: int) -> None:
        busy = self._saving.busy
        if busy is not None:
            self._saving.warn(f"that of step {busy} is still being written; save less often, or to a faster store.")
            return
        counters = self._manager.state_dict()
        shard = freeze(
            self._state(), step=step, committed_in=counters["committed_in"], rank=self._rank, ranks=self._ranks,
            memory=self._saving.memory,
        )  # fmt: skip
        self._prepared, self._saved_step = True, step
        group, _, nonce = self._connection.replica_id.partition(":")
        writer = f"{group}-{nonce[:8]}-{counters['committed_in']}"  # all ranks of this attempt agree
        self._saving.submit(names.name(step, writer), shard)

    def _state(self) -> dict[str, Any]:
        return {"torchft": self._manager.state_dict(), "parts": of_parts.gather(self._parts)}

    def _release(self, *, over: bool) -> None:
        if self._claiming is not None:
            try:
                self._claiming.close(over=over, wait=1.0)
            except TorchftXError as e:
                log.info("%s", e)


def _job_of(lighthouse: str) -> str:
    """Return an id of this job: its groups share a lighthouse, and no two running jobs do."""
    here = socket.gethostname() if any(word in lighthouse for word in _LOOPBACK) else ""
    return hashlib.sha256(f"{lighthouse} {here}".encode()).hexdigest()[:16]

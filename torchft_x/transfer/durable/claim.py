"""`job.json`: which job writes below a URL. `core.training.save_duty.Claim` decides what follows from it."""

from __future__ import annotations

import json
import re
import time

from torchft_x.transfer.durable.sealed import TornError
from torchft_x.transfer.durable.store import MissingError, Store

FILE = "job.json"
_MAX_BYTES = 1000
_TRIES, _LOOK_AGAIN = 2, 0.05  # tries and seconds between them, to read a file that another process is just writing
_JOB = re.compile(r"[A-Za-z0-9_-]{1,100}")


def read_claim(store: Store) -> tuple[str, int, bool] | None:
    """Return (job, beat, whether it is over), or None if no job claims the URL.

    Raises `TornError` if the writer died in the middle of a write, and `TransferError`.
    """
    for _ in range(_TRIES):
        try:
            return _read(store)
        except TornError:
            time.sleep(_LOOK_AGAIN)
    return _read(store)


def _read(store: Store) -> tuple[str, int, bool] | None:
    try:
        value = json.loads(store.read(FILE, 0, _MAX_BYTES))
    except MissingError:
        return None
    except ValueError:
        value = None
    job, beat, over = (value.get(name) for name in ("job", "beat", "over")) if isinstance(value, dict) else (None,) * 3
    if isinstance(job, str) and _JOB.fullmatch(job) and type(beat) is int and type(over) is bool:
        return job, beat, over
    raise TornError(f"checkpoint {store.shown}: {FILE} is not whole.")


def write_claim(store: Store, job: str, beat: int, *, over: bool = False) -> None:
    """Write the claim of a job. Raises `TransferError`; `DeniedError` if this process may not write at all."""
    store.write(FILE, [json.dumps({"job": job, "beat": beat, "over": over}).encode()])

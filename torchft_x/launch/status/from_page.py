"""Reads the overview over HTTP, if the run's page can be reached from here, mostly on the lighthouse's own host."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from torchft_x.address_files import PAGE, read_address
from torchft_x.errors import ConfigError
from torchft_x.net import Address

_MOST = 64 << 20  # bytes of an answer that are read


def from_page(run_dir: Path, lighthouse: Address, timeout: float) -> dict[str, Any] | None:
    """Return the overview, or None if there is no page, it can't be reached, or it is not this lighthouse's.

    The answer is trusted: ``status --url`` prints the token after an address in it.
    """
    try:
        page = read_address(run_dir / PAGE)
    except (OSError, ConfigError):  # the caller then asks the lighthouse itself
        return None
    if page is None:
        return None
    connection = http.client.HTTPConnection(page.host, page.port, timeout=timeout)
    try:
        connection.request("GET", "/status.json")
        found = json.loads(connection.getresponse().read(_MOST))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    ours = isinstance(found, dict) and found.get("address") == lighthouse.url
    return found if ours else None

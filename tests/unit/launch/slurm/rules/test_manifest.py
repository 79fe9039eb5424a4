"""What is written of a job can be read, also by another version; what is torn is said to be."""

from __future__ import annotations

import json

import pytest

from tests.unit.launch.slurm.rules.test_queue import row
from tests.unit.launch.slurm.rules.test_restart import manifest as of_parts
from tests.unit.launch.slurm.rules.test_restart import part
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, from_json, rows_by_part, to_json


def manifest() -> Manifest:
    lighthouse = part(0, role="lighthouse", kind="lighthouse", job="3_0", ticket="")
    return of_parts(lighthouse, *(part(n, job=f"4_{n}", ticket="t") for n in (0, 1)), app="a")


def test_it_is_read_as_it_was_written() -> None:
    now = manifest()
    assert from_json(json.loads(json.dumps(to_json(now)))) == now
    newer = json.loads(json.dumps(to_json(now)))
    newer["colour"] = newer["parts"][0]["colour"] = "red"
    assert from_json(newer) == now


@pytest.mark.parametrize("found", [[], None, {}, {"parts": None}, {"parts": [1]}, {"parts": [{"earlier": []}]}])
def test_what_is_no_manifest_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json({**to_json(manifest()), **found} if isinstance(found, dict) and found else found)


def test_rows_of_parts() -> None:
    now = manifest()
    assert rows_by_part(now, [row("RUNNING")]) == {"lighthouse/0": None, "trainer/0": row("RUNNING"), "trainer/1": None}
    lost = part(0, job=SUBMITTING, ticket="t")
    assert rows_by_part(now.with_part(lost), [row("PENDING")])["trainer/0"] == row("PENDING")  # by its ticket
    assert lost.jobs == ()

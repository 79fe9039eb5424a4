"""What is written of a job can be read, also by another version; what is torn is said to be."""

from __future__ import annotations

import json

import pytest

from tests.unit.launch.slurm.rules.test_queue import row
from torchft_x.launch.slurm.rules.manifest import (
    SUBMITTING,
    Manifest,
    Part,
    from_json,
    missing_parts,
    rows_by_part,
    to_json,
)


def manifest() -> Manifest:
    lighthouse = Part(role="lighthouse", kind="lighthouse", number=0, script="/r/slurm/lighthouse.sh", job="3_0")
    groups = [
        Part(role="trainer", kind="trainer", number=n, script="/r/t.sh", job=f"4_{n}", ticket="t") for n in (0, 1)
    ]
    return Manifest(
        app="a",
        session="s",
        run_dir="/r",
        token_file="/r/token",
        log_dir="/r/slurm/logs",
        created=1.5,
        retries=3,
        parts=(lighthouse, *groups),
    )


def test_it_is_read_as_it_was_written() -> None:
    now = manifest()
    assert from_json(json.loads(json.dumps(to_json(now)))) == now
    newer = json.loads(json.dumps(to_json(now)))
    newer["colour"] = newer["parts"][0]["colour"] = "red"
    assert from_json(newer) == now


@pytest.mark.parametrize("key", ["app", "parts", "created", "retries"])
@pytest.mark.parametrize("value", [None, True, [1], {}])
def test_what_is_no_manifest_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json({**to_json(manifest()), key: value})


def test_rows_of_parts() -> None:
    now = manifest()
    assert rows_by_part(now, [row("RUNNING")]) == {"lighthouse/0": None, "trainer/0": row("RUNNING"), "trainer/1": None}
    assert [part.name for part in missing_parts(now, [row("RUNNING")])] == ["lighthouse/0", "trainer/1"]
    lost = Part(role="trainer", kind="trainer", number=0, script="/r/t.sh", job=SUBMITTING, ticket="t")
    assert rows_by_part(now.with_part(lost), [row("PENDING")])["trainer/0"] == row("PENDING")  # by its ticket
    assert lost.jobs == ()

"""Check the parameters that a real run has dumped, with the checker of the benchmarks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.evidence import check_params


def unequal(folder: Path) -> list[str]:
    """Return findings, one sentence each.

    The bits of a step must be equal within one quorum. Between quorums they may differ, as a lost group may have made
    the step alone.
    """
    dumps = check_params.read_dumps(folder)
    if not dumps:
        return ["no parameters were dumped"]
    digests = defaultdict(set)
    for d in dumps:
        digests[d.step, d.rank, d.committed_in].add(d.digest)
    findings = [finding for finding in check_params.check(dumps) if "the parameters differ" not in finding]
    return findings + [
        f"step {step}, rank {rank}, quorum {quorum}: the parameters differ"
        for (step, rank, quorum), different in sorted(digests.items())
        if len(different) > 1
    ]

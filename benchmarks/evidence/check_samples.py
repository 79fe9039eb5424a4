"""Check from outside that a training committed each sample of its data set exactly once per epoch.

    python benchmarks/evidence/check_samples.py FOLDER --length 100000 --epochs 3

FOLDER holds what the training script wrote by itself (`exact_worker.py`): files *.jsonl with two kinds of lines.
"try", before the last backward of a step: who, rank, ranks, step, quorum, samples as [epoch, index] pairs. "commit",
after it: step, committed_in (its quorum), before (the quorum of the step before), contributors (whose gradients count).

The newest lineage is found from the newest commit back along `before`; rolled back commits don't count. Each of its steps
has trained the newest try of each contributor at or before its quorum. Files *.counts are the final parameters of groups,
a byte per sample for all epochs, and must agree. The exit code is 1 if not all is exact. No import is of the library.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path


def read(folder, problems):
    """Return the tries by (who, rank, step), the commits by (step, committed_in), and each group's number of ranks."""
    tries, commits, ranks = {}, {}, {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text().split("\n")[:-1]:  # a killed process may have left the beginning of a line
            line = json.loads(text)
            if line["kind"] == "try":
                key = (line["who"], line["rank"], line["step"])
                tries.setdefault(key, []).append((line["quorum"], line["samples"]))
                ranks[line["who"]] = line["ranks"]
            elif line["kind"] == "commit":
                key, found = (line["step"], line["committed_in"]), (line["before"], line["contributors"])
                if commits.setdefault(key, found) != found:
                    problems.append(f"step {key[0]}, quorum {key[1]}: one says {commits[key]}, another {found}")
    return tries, commits, ranks


def lineage(commits, problems):
    """Return (step, quorum, contributors) of each step of the newest lineage, the last step first."""
    step, quorum = max(commits, key=lambda key: (key[1], key[0]), default=(-1, 0))
    found = []
    while step >= 0:
        if (step, quorum) not in commits:
            problems.append(f"no line says that step {step} was committed in quorum {quorum}")
            break
        before, contributors = commits[step, quorum]
        found.append((step, quorum, contributors))
        step, quorum = step - 1, before
    return found


def count(steps, tries, ranks, length, problems):
    """Return how often each sample was trained, a bytearray per epoch, and how many steps trained how many samples."""
    counts, sizes = {}, Counter()
    for step, quorum, contributors in steps:
        trained = []
        for who in contributors:
            for rank in range(ranks.get(who, 1)):
                fitting = [one for one in tries.get((who, rank, step), []) if one[0] <= quorum]
                if fitting:
                    trained += max(reversed(fitting), key=lambda one: one[0])[1]
                else:
                    problems.append(f"step {step}, quorum {quorum}: {who} rank {rank} contributed, but tried nothing")
        sizes[len(trained)] += 1
        for epoch, index in trained:
            of = counts.setdefault(epoch, bytearray(length))
            of[index] = min(255, of[index] + 1)
    return counts, sizes


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--length", type=int, required=True, help="number of samples")
    p.add_argument("--epochs", type=int, required=True, help="number of epochs that must be complete")
    p.add_argument("--left-out", type=int, default=0, help='samples of each epoch that the tail "drop" leaves out')
    args = p.parse_args()
    problems = []
    tries, commits, ranks = read(args.folder, problems)
    counts, sizes = count(steps := lineage(commits, problems), tries, ranks, args.length, problems)
    for epoch in range(max([args.epochs, *(e + 1 for e in counts)])):
        of = counts.setdefault(epoch, bytearray(args.length))
        missing, repeated = of.count(0), sum(max(0, n - 1) for n in of)
        print(f"epoch {epoch}: {sum(of)} samples trained, {missing} missing, {repeated} repeated")
        if repeated or (epoch < args.epochs and missing != args.left_out):
            problems.append(f"epoch {epoch} is not exact: {missing} missing, {repeated} repeated")
    for path in sorted(args.folder.glob("*.counts")):
        if path.read_bytes() != bytes(map(sum, zip(*counts.values(), strict=True))):
            problems.append(f"the parameters in {path.name} say otherwise than the lines")
    rolled = len(commits) - len(steps)
    print(f"{len(steps)} steps, {rolled} rolled back; samples per step: {dict(sizes.most_common(8))}")
    print("\n".join(problems[:20]) or f"exact: {args.epochs} epochs of {args.length - args.left_out} samples")
    return 1 if problems or not steps else 0


if __name__ == "__main__":
    sys.exit(main())

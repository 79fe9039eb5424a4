"""Names of torchft's that mean something else here on purpose, and torchft's defects that are gone. Data only.

docs/torchft.md prints these tables; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    what: str
    torchft: str
    here: str


class MissingName(NamedTuple):
    defect: str
    test: str
    """This project's test that shows it: a file, and the test's name or its beginning."""


DIFFERENCES = (
    Difference(
        "`Manager(timeout, quorum_timeout, connect_timeout)` not given",
        "60 s each",
        "60 s each; a quorum: while the lighthouse gives a reason (an hour at most), three minutes without one",
    ),
    Difference(
        "a group that comes while others train",
        "computes its first step on old weights, sends zeros",
        "drops its first step, then joins (`Manager(rehearse=False)`: joins at once)",
    ),
    Difference(
        "a newcomer's quorum",
        "the next step's",
        "the next one that is asked for: about once in a second of steps or exchanges",
    ),
    Difference(
        "where a step is decided",
        "in `should_commit`",
        "at the end of `backward()`; `should_commit` carries it out. A script that drops a step after `backward()` "
        "votes in `should_commit` from then on (`Manager(vote_in_backward=False)`: from the start)",
    ),
    Difference(
        "a reduction fails because a group died",
        "the step is dropped, its batch lost",
        "the same gradients are reduced again in `backward()`, among the remaining groups",
    ),
    Difference(
        "a group late for a reduction",
        "is waited for: `timeout`, 60 s",
        "is left out after 2 s or five times the others' part of a step (`Manager(straggler_timeout)`), and comes "
        "back; if late repeatedly, after 10 s, doubled each time up to 300 s",
    ),
    Difference(
        "a group that comes after the end of training",
        "trains again from step 0",
        "ends with exit code 2 and a sentence",
    ),
    Difference(
        "a newcomer with another model, library or number of ranks",
        "joins; processes abort or drift apart",
        "is refused at its join; the sentence names both sides",
    ),
    Difference(
        "callbacks of `Manager.allreduce(...).get_future()`",
        "run at the first `wait()`",
        "run when the reduction has ended; `wait()` returns False after a failure and never raises",
    ),
    Difference(
        "`ProcessGroup.wait` after a failure",
        "torch's `RuntimeError`",
        "`CollectiveError` (a `RuntimeError`) with rank and group; at a deadline `TimeoutError`",
    ),
    Difference(
        "`DistributedDataParallel`",
        "a subclass of torch's, with `.reducer`, `register_comm_hook`, `logger`",
        "its own module with `.module`, `no_sync`, `reduce_gradients`; hooks are refused",
    ),
    Difference(
        "values in a state dict",
        "whatever pickle takes",
        "tensors, numbers, strings, containers, numpy, enums, dataclasses, named tuples; others by "
        "`torchft_x.register_leaf`. Nothing is unpickled",
    ),
    Difference(
        "`HTTPTransport.send_checkpoint`, `disallow_checkpoint`",
        "serves live tensors; `disallow_checkpoint` waits for readers",
        "serves a copy in host memory; nothing waits",
    ),
    Difference("`HTTPTransport(num_chunks)`", "parts of the state", "a receiver's parallel streams"),
    Difference(
        "`recv_checkpoint` without a Manager", "creates DTensors", "needs `into` for DTensors; plain tensors need none"
    ),
    Difference(
        "first weights with `DiLoCo`, `LocalSGD`",
        "each group's own in its first period",
        "agreed on in the first forward inside `with` (`torchft_x.DiLoCo`: on entry)",
    ),
    Difference(
        "a failed exchange of `DiLoCo`",
        "resets to the last global weights",
        "keeps the local weights and tries again `fragment_sync_delay + 1` inner steps later",
    ),
    Difference("`DiLoCo(use_bucketization)`", "off, 1 GiB", "on, 25 MiB"),
    Difference(
        "`DiLoCo(should_quantize)`",
        "fp8 or int8 on CUDA with Triton; silently off elsewhere",
        "int8 (True) or int4 on any device, fp8 on CUDA; with error feedback",
    ),
    Difference(
        "`Manager(use_async_quorum=True)` with DTensors (FSDP2, torchtitan)",
        "copies the state during a forward, which FSDP2's `state_dict` disturbs",
        "waits for the quorum before the forward (`torchft_x.HybridShardedDataParallel` does not wait)",
    ),
    Difference(
        "`DistributedSampler` without `group_rank`, `num_replicas`",
        "needs a default process group",
        "takes RANK and WORLD_SIZE, else 0 and 1",
    ),
    Difference(
        "`ManagerServer`, `heartbeat_interval`, `quorum_retries`",
        "heartbeats and retries",
        "accepted without effect: a session shows which groups live, and reconnects",
    ),
    Difference("`import torchft`", "starts three OpenTelemetry loggers", "loads each name when it is used"),
    Difference(
        "the lighthouse's `heartbeat_timeout_ms`",
        "5000",
        "1500 to 10000, by the kind of silence; a given value holds for all kinds",
    ),
)

GONE = (
    MissingName(
        "DiLoCo with several buckets in a fragment, or a tensor larger than one, drifts apart and commits",
        "tests/torch/train/test_apart.py::test_buckets_of_any_size_average_the_same",
    ),
    MissingName(
        "`PureDistributedDataParallel` does not average",
        "tests/torch/train/ddp/test_reducer.py::test_average_with_unused_parameters",
    ),
    MissingName(
        "a slow receiver of a checkpoint stalls its source, or ends it",
        "tests/torch/transfer/http/test_transport.py::test_a_slow_reader_blocks_nothing_and_gets_the_frozen_bytes",
    ),
    MissingName(
        "a restarted lighthouse begins at quorum 1, and trainers die",
        "tests/journeys/test_lighthouse_dies.py::test_a_lighthouse_that_is_killed_costs_nobody_a_step",
    ),
    MissingName(
        "a dead group is noticed only when a collective times out",
        "tests/journeys/test_kills.py::test_two_groups_survive_kills_with_equal_parameters",
    ),
    MissingName(
        "checkpoints are pickles from any sender, without a digest",
        "tests/torch/transfer/http/test_transport.py::test_a_flipped_bit_is_detected_and_named",
    ),
    MissingName(
        "no call needs a token",
        "tests/torch/transfer/http/test_transport.py::test_a_wrong_or_missing_token_is_refused_at_once",
    ),
    MissingName("the advertised address can't be chosen", "tests/unit/test_net.py::test_what_is_given_wins"),
    MissingName(
        "quantising doubles the bytes of one-dimensional tensors",
        "tests/torch/comm/quantized/test_collectives.py::test_a_few_values_are_not_inflated",
    ),
    MissingName(
        "fast groups keep a newcomer out",
        "tests/torch/train/test_newcomers.py::test_others_train_on_while_a_newcomer_makes_its_first_step",
    ),
    MissingName(
        "TORCHFT_TIMEOUT_SEC and TORCHFT_CONNECT_TIMEOUT_SEC reach only a part of the code",
        "tests/torch/compat/test_adapters.py::test_torchfts_variables_beat_the_arguments",
    ),
    MissingName("the lighthouse loads torch", "tests/process/test_imports.py::test_start_up_without_torch"),
    MissingName(
        "`hsdp` starts too many processes, all on one port",
        "tests/unit/launch/test_components.py::test_a_components_app",
    ),
)


def differences() -> str:
    """Return the differences as a Markdown table."""
    return table(["", "torchft", "here"], [list(d) for d in DIFFERENCES])


def gone() -> str:
    """Return torchft's defects that are gone as a Markdown table."""
    return table(["defect"], [[g.defect] for g in GONE])


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)

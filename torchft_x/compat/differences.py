"""Names of torchft's that mean something else here on purpose, and torchft's defects that are gone. Data only.

docs/torchft.md prints these tables; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    what: str
    torchft: str
    here: str


class Gone(NamedTuple):
    defect: str
    test: str
    """This project's test that shows it: a file, and the test's name or its beginning."""


DIFFERENCES = (
    Difference(
        "`Manager(timeout, quorum_timeout, connect_timeout)`, where a script gives none",
        "60 s each",
        "60 s each, but a quorum is waited for as long as the lighthouse says what it waits for (an hour in all), and while "
        "it is away (three minutes)",
    ),
    Difference(
        "a group that comes while others train",
        "computes its first step on old weights, and sends zeros",
        "makes its first step for itself and drops it; then it joins (`Manager(rehearse=False)` joins at once)",
    ),
    Difference(
        "where a step is decided",
        "in `should_commit`",
        "at the end of `backward()`; `should_commit` carries it out. A script that throws steps away after backward is found "
        "out the first time, and votes in `should_commit` from then on (`Manager(vote_in_backward=False)`)",
    ),
    Difference(
        "a reduction that fails because a group died",
        "the step is dropped, its batch lost",
        "the same gradients are reduced again among those that are left, inside `backward()`",
    ),
    Difference(
        "`Manager.allreduce(...).wait()`, futures",
        "callbacks of `get_future()` run at the first `wait()`",
        "when the reduction has ended; a failure is False from `wait()`, never an exception",
    ),
    Difference(
        "`ProcessGroup.wait` after a failure",
        "torch's own words, `RuntimeError`",
        "`CollectiveError`, a `RuntimeError` that names the rank and the group; a deadline is `TimeoutError`",
    ),
    Difference(
        "`DistributedDataParallel`",
        "a subclass of torch's class: `.reducer`, `register_comm_hook`, `logger`",
        "a module of its own with `.module`, `no_sync`, `reduce_gradients`; hooks are refused with a sentence",
    ),
    Difference(
        "a state dict's values",
        "whatever pickle takes",
        "tensors, numbers, strings, containers, numpy, enums, dataclasses, named tuples; other types by "
        "`torchft_x.register_leaf`. Nothing is unpickled",
    ),
    Difference(
        "`HTTPTransport.send_checkpoint`, `disallow_checkpoint`",
        "serves the live tensors; `disallow_checkpoint` waits for readers",
        "serves a frozen copy in host memory; nobody waits",
    ),
    Difference(
        "`HTTPTransport(num_chunks)`",
        "how many parts the state is cut into",
        "how many streams a receiver reads with",
    ),
    Difference(
        "`DiLoCo`, `LocalSGD`: the first weights",
        "each group trains its first period from its own",
        "agreed on at the model's first forward inside `with` (`torchft_x.DiLoCo`: on entry)",
    ),
    Difference(
        "`DiLoCo`: a failed exchange",
        "resets to the last global weights",
        "keeps the local weights, and tries again `fragment_sync_delay + 1` inner steps later",
    ),
    Difference("`DiLoCo(use_bucketization)`", "off, buckets of 1 GiB", "on, buckets of 25 MiB"),
    Difference(
        "`DiLoCo(should_quantize)`",
        "fp8 or int8 on CUDA with Triton; elsewhere silently off",
        "int8 (True), int4 or fp8 on any device, with error feedback",
    ),
    Difference(
        "a newcomer while others train",
        "is in the next quorum, which is asked for in each step",
        "is in the next quorum, which is asked for once in about a second of steps or exchanges",
    ),
    Difference(
        "a group that is later than the others to a reduction",
        "is waited for: `timeout`, 60 s",
        "is left out after 2 s, or five times what the others' part of a step takes, and let in again when it comes "
        "(`Manager(straggler_timeout)`); who is late again and again waits 10 s",
    ),
    Difference(
        "a group that comes when the others have ended the training",
        "trains the job again, from step 0",
        "is stopped with exit code 2 and a sentence",
    ),
    Difference(
        "`Manager(use_async_quorum=True)` with DTensors in the state (FSDP2, torchtitan)",
        "the state is copied while a forward runs, which FSDP2's `state_dict` disturbs",
        "the quorum is waited for before the forward (`torchft_x.HybridShardedDataParallel` need not wait)",
    ),
    Difference(
        "`recv_checkpoint` of a transport, used without a Manager",
        "makes DTensors anew",
        "needs `into` with a DTensor there; plain tensors need none",
    ),
    Difference(
        "`DistributedSampler` without `group_rank`, `num_replicas`",
        "needs an initialised default process group",
        "RANK and WORLD_SIZE, else 0 and 1, will do",
    ),
    Difference(
        "`OptimizerWrapper.step(closure)`",
        "an assertion",
        "`ConfigError` (a `ValueError`)",
    ),
    Difference(
        "`ManagerServer`, `heartbeat_interval`, `quorum_retries`",
        "beats, and asks again so often",
        "taken, and without effect: a session shows who lives, and is made anew by itself",
    ),
    Difference(
        "a newcomer with another model, library or number of ranks",
        "joins; processes abort or drift apart",
        "refused at its join with a sentence that names both sides",
    ),
    Difference(
        "`import torchft`",
        "starts three loggers of OpenTelemetry",
        "loads nothing until a name is used",
    ),
    Difference(
        "the lighthouse's defaults",
        "`heartbeat_timeout_ms` 5000",
        "by the kind of silence, 1.5 s to 10 s; a given one holds for all kinds",
    ),
)

GONE = (
    Gone(
        "DiLoCo with several buckets in a fragment, or a tensor larger than one, drifts apart, and commits",
        "tests/torch/train/test_apart.py::test_buckets_of_any_size_average_the_same",
    ),
    Gone(
        "`PureDistributedDataParallel` does not average",
        "tests/torch/train/ddp/test_reducer.py::test_average_with_unused_parameters",
    ),
    Gone(
        "a slow receiver of a checkpoint stalls its source, or ends it with an error",
        "tests/torch/transfer/http/test_transport.py::test_a_slow_reader_blocks_nothing_and_gets_the_frozen_bytes",
    ),
    Gone(
        "a lighthouse that is started again begins at quorum 1; trainers die with it",
        "tests/journeys/test_lighthouse_dies.py::test_a_lighthouse_that_is_killed_costs_nobody_a_step",
    ),
    Gone(
        "a dead group is noticed when a collective runs out of time",
        "tests/journeys/test_kills.py::test_two_groups_survive_kills_with_equal_parameters",
    ),
    Gone(
        "checkpoints are pickles from whoever answers, without a digest",
        "tests/torch/transfer/http/test_transport.py::test_a_flipped_bit_is_detected_and_named",
    ),
    Gone(
        "no call needs a token",
        "tests/torch/transfer/http/test_transport.py::test_a_wrong_or_missing_token_is_refused_at_once",
    ),
    Gone("the address that others are told can't be chosen", "tests/unit/test_net.py::test_what_is_given_wins"),
    Gone(
        "quantising doubles the bytes of one-dimensional tensors",
        "tests/torch/comm/quantized/test_collectives.py::test_a_few_values_are_not_inflated",
    ),
    Gone(
        "groups that are fast keep a newcomer out",
        "tests/torch/train/test_newcomers.py::test_others_train_on_while_a_newcomer_makes_its_first_step",
    ),
    Gone(
        "TORCHFT_TIMEOUT_SEC and TORCHFT_CONNECT_TIMEOUT_SEC reach a part of the code only",
        "tests/torch/compat/test_adapters.py::test_torchfts_variables_beat_the_arguments",
    ),
    Gone("the lighthouse loads torch", "tests/process/test_imports.py::test_start_up_without_torch"),
    Gone(
        "`hsdp` starts too many processes, all on one port",
        "tests/unit/launch/test_components.py::test_a_components_app",
    ),
)


def differences() -> str:
    """Return the differences as a Markdown table."""
    return table(["", "torchft", "here"], [list(d) for d in DIFFERENCES])


def gone() -> str:
    return table(["gone", "seen in"], [[g.defect, f"`{g.test.split('::')[0]}`"] for g in GONE])


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)

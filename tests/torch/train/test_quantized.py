"""`Manager.allreduce(should_quantize=...)`: through a whole job with a real lighthouse and real gloo."""

from __future__ import annotations

import re

import pytest
import torch
from torch.distributed import ReduceOp

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, start
from torchft_x.comm.quantized.format import INT4, INT8, Format, decode, encode
from torchft_x.core.heal import WorldSizeMode
from torchft_x.errors import ConfigError
from torchft_x.train.context.fingerprint import FingerprintBuilder


def given(group: int) -> torch.Tensor:
    return torch.randn(20, 50, generator=torch.Generator().manual_seed(group))


def sent(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """As it arrives."""
    return decode(encode(x.reshape(-1), fmt), x.numel(), fmt).view_as(x)


@pytest.mark.parametrize("fmt", [INT8, INT4], ids=str)
def test_groups_get_the_same_bits_and_commit(fmt: Format) -> None:
    with lighthouse(3) as addr:
        trainers = start(3, addr)

        def body(g: int) -> list[torch.Tensor]:
            m = trainers[g].manager
            m.declare_quantization(fmt.name)
            results = []
            for op in (ReduceOp.AVG, ReduceOp.SUM):
                m.start_quorum()
                t = given(g)
                assert m.allreduce(t, fmt.name, op).wait()  # with its digest, which the vote compares
                results.append(t)
                assert m.should_commit()
            return results

        results = run_threads(3, body)
        leave(*trainers)
    average, total = results[0]
    for other in results[1:]:
        assert torch.equal(other[0], average)
        assert torch.equal(other[1], total)
    # each value lost at most the error of the second encoding; what was encoded first is the tensor itself, not a third
    exact = torch.stack([sent(given(g), fmt) for g in range(3)]).sum(0)
    bound = (0.004 if fmt is INT8 else 0.072) * exact.abs().max()
    assert (total - exact).abs().max() <= bound
    assert (average - exact / 3).abs().max() <= bound / 3 * 1.001


def test_a_spare_contributes_zeros_and_gets_the_result(pair_address: str) -> None:
    trainers = start(2, pair_address, min_replica_size=1, world_size_mode=WorldSizeMode.FIXED_WITH_SPARES)

    def body(g: int) -> torch.Tensor:
        m = trainers[g].manager
        m.start_quorum()
        assert m.is_participating() == (g == 0)
        t = given(g)
        assert m.allreduce(t, should_quantize=True).wait()
        assert m.should_commit()
        return t

    first, second = run_threads(2, body)
    assert torch.equal(first, second)
    assert torch.allclose(first, given(0), atol=0.05)


def test_a_reduction_that_fails_drops_the_step_and_the_next_one_is_whole(pair_address: str) -> None:
    trainers = start(2, pair_address)

    def body(g: int) -> tuple[bool, bool, torch.Tensor]:
        m = trainers[g].manager
        m.start_quorum()
        m.wait_quorum()
        if g == 1:
            trainers[1].pg.abort()  # its connections break
        worked = m.allreduce(given(g), should_quantize=True).wait()
        committed = m.should_commit()
        t = torch.ones(300) * g
        while True:
            m.start_quorum()
            t.fill_(g)
            good = m.allreduce(t, should_quantize=True).wait()
            if m.should_commit():
                assert good
                return worked, committed, t

    for worked, committed, t in run_threads(2, body):
        assert not worked
        assert not committed
        assert torch.allclose(t, torch.full((300,), 0.5), atol=0.01)


def test_what_is_impossible_is_said_at_once_and_costs_no_step(address: str) -> None:
    m = Trainer(0, address).manager
    m.start_quorum()
    with pytest.raises(ConfigError, match="only SUM and AVG"):
        m.allreduce(torch.ones(1), True, ReduceOp.MAX)
    assert m.allreduce(torch.ones(1), "int8").wait()
    with pytest.raises(ConfigError, match="declared quantisation int8, and int4 is asked for"):
        m.allreduce(torch.ones(1), "int4")
    assert m.should_commit()


def test_of_groups_that_quantise_otherwise_and_did_not_say_so_one_ends_with_a_sentence(address: str) -> None:
    """gloo would end both processes. The other one goes on."""
    trainers = start(2, address)

    def body(g: int) -> str:
        m = trainers[g].manager
        together, committed = False, 0
        while committed < 2:
            m.start_quorum()
            try:
                good = m.allreduce(torch.ones(1000), ("int8", "int4")[g]).wait()
            except ConfigError as e:
                m.shutdown()
                return str(e)
            together = together or m.num_participants() == 2
            assert good or together
            committed += m.should_commit() and together
        m.shutdown()
        return ""

    said = run_threads(2, body)
    assert sorted(map(bool, said)) == [False, True]
    assert re.match("this group quantises in 'int[48]', and rank 0 of 2 in 'int[48]'; use one format", max(said))


def test_it_is_declared_once() -> None:
    d = FingerprintBuilder(1, ())
    before = d.traits
    d.quantizes(INT8)
    d.quantizes(INT8)
    assert [t.words for t in d.traits.items[len(before.items) :]] == ["int8"]

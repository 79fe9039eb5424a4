"""`Manager.allreduce(should_quantize=...)`: through a whole job with a real lighthouse and real gloo."""

from __future__ import annotations

import re

import pytest
import torch
from torch.distributed import ReduceOp

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, start
from torchft_x.comm.quantized.format import decode, encode, format_of
from torchft_x.core.heal import WorldSizeMode
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.train.context.fingerprint import FingerprintBuilder


def given(group: int) -> torch.Tensor:
    return torch.randn(20, 50, generator=torch.Generator().manual_seed(group))


def sent(x: torch.Tensor, fmt: str) -> torch.Tensor:
    """As it arrives."""
    f = format_of(fmt)
    assert f is not None
    return decode(encode(x.reshape(-1), f), x.numel(), f).view_as(x)


@pytest.mark.parametrize("fmt", ["int8", "int4"])
def test_groups_get_the_same_bits_and_commit(fmt: str) -> None:
    with lighthouse(3) as addr:
        trainers = start(3, addr)

        def body(g: int) -> list[torch.Tensor]:
            m = trainers[g].manager
            m.declare_quantization(fmt)
            results = []
            for op in (ReduceOp.AVG, ReduceOp.SUM):
                m.start_quorum()
                t = given(g)
                assert m.allreduce(t, fmt, op).wait()  # with its digest, which the vote compares
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
    bound = (0.004 if fmt == "int8" else 0.072) * exact.abs().max()
    assert (total - exact).abs().max() <= bound
    assert (average - exact / 3).abs().max() <= bound / 3 * 1.001


def test_a_spare_contributes_zeros_and_gets_the_result() -> None:
    with lighthouse(2) as addr:
        trainers = start(2, addr, min_replica_size=1, world_size_mode=WorldSizeMode.FIXED_WITH_SPARES)

        def body(g: int) -> torch.Tensor:
            m = trainers[g].manager
            m.start_quorum()
            assert m.is_participating() == (g == 0)
            t = given(g)
            assert m.allreduce(t, should_quantize=True).wait()
            assert m.should_commit()
            return t

        first, second = run_threads(2, body)
        leave(*trainers)
    assert torch.equal(first, second)
    assert torch.allclose(first, given(0), atol=0.05)


def test_a_reduction_that_fails_drops_the_step_and_the_next_one_is_whole() -> None:
    with lighthouse(2) as addr:
        trainers = start(2, addr)

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
        leave(*trainers)


def test_what_is_impossible_is_said_at_once_and_costs_no_step() -> None:
    with lighthouse(1) as addr:
        m = Trainer(0, addr).manager
        m.start_quorum()
        with pytest.raises(ConfigError, match="only SUM and AVG"):
            m.allreduce(torch.ones(1), True, ReduceOp.MAX)
        assert m.allreduce(torch.ones(1), "int8").wait()
        with pytest.raises(ConfigError, match="declared quantisation int8, and int4 is asked for"):
            m.allreduce(torch.ones(1), "int4")
        assert m.should_commit()
        m.shutdown()


def test_a_group_that_quantises_otherwise_is_refused_at_its_join() -> None:
    with lighthouse(1) as addr:
        a = Trainer(0, addr)
        a.manager.declare_quantization("int8")
        a.run_to(1)
        b = Trainer(1, addr)
        b.manager.declare_quantization("int4")
        with pytest.raises(RefusedError, match="its quantisation is int4 where group_0's is int8"):
            run_threads(2, lambda g: b.step() if g else a.run_to(4))
        c = Trainer(2, addr)
        c.manager.declare_quantization(False)
        with pytest.raises(RefusedError, match="its quantisation is none where group_0's is int8"):
            run_threads(2, lambda g: c.step() if g else a.run_to(a.manager.current_step() + 4))
        a.manager.shutdown()


def test_of_groups_that_quantise_otherwise_and_did_not_say_so_one_ends_with_a_sentence() -> None:
    """gloo would end both processes. The other one goes on."""
    with lighthouse(1) as addr:
        trainers = start(2, addr)

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
    assert re.match(
        "this group quantises in 'int[48]', and the one at place 0 of 2 in 'int[48]'; use one format", max(said)
    )


def test_it_is_declared_once_and_may_be_left_out() -> None:
    d = FingerprintBuilder(1, ())
    before = d.traits
    d.quantizes(format_of("int8"))
    d.quantizes(format_of(True))
    assert [t.words for t in d.traits.items[len(before.items) :]] == ["int8"]
    free = FingerprintBuilder(1, ("quantisation",))
    free.quantizes(None)
    assert free.traits == before or len(free.traits.items) == len(before.items)

"""Buckets as Prometheus reads them."""

from __future__ import annotations

from torchft_x.observe.view.durations import Durations


def test_a_bucket_counts_all_that_took_no_longer() -> None:
    d = Durations((0.1, 1))
    for seconds in (0.1, 0.5, 1.0, 7.0):
        d.add(seconds)
    assert d.buckets() == [("0.1", 1.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert d.sum == 8.6


def test_without_any() -> None:
    assert Durations((1,)).buckets() == [("1.0", 0.0), ("+Inf", 0.0)]

"""The times of torchft_x.timing: their order, their scale, and where it comes from."""

from __future__ import annotations

import re
from dataclasses import asdict, fields

import pytest

from torchft_x import env, timing
from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING, Timing

ROWS = re.findall(r"^    (\w.*?) +(<=?) +(\S.*?)  +(\S.*)$", timing.__doc__ or "", flags=re.MULTILINE)


@pytest.mark.parametrize(("smaller", "sign", "larger", "why"), ROWS, ids=[f"{r[0]}-{r[2]}" for r in ROWS])
def test_each_relation_holds(smaller: str, sign: str, larger: str, why: str) -> None:
    assert eval(f"{smaller} {sign} {larger}", {}, asdict(TIMING)), why


def test_the_table_has_a_row_per_line() -> None:
    assert len(ROWS) == (timing.__doc__ or "").count("<") > 50


def test_a_scale_multiplies_every_field() -> None:
    one, three = Timing(), Timing().scaled(3.0)
    assert [getattr(three, f.name) for f in fields(one)] == [3.0 * getattr(one, f.name) for f in fields(one)]
    assert one.scaled(1.0) == one


@pytest.mark.parametrize("bad", ["slow", "0", "-1", "nan", "inf", "1000"])
def test_nonsense_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match=f"{env.TIME_SCALE} is '{bad}'; it multiplies all times"):
        env.time_scale({env.TIME_SCALE: bad})

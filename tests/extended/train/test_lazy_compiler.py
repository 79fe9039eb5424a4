"""torch's compiler isn't loaded before something is compiled, and works as if it had been."""

from __future__ import annotations

import json

from tests.process.train.test_lazy_compiler import DEFER, THEN_COMPILED, TRAINING, run


def test_what_is_compiled_later_is_compiled_as_ever() -> None:
    """The optimizer's step in it, too: the same breaks between graphs, the same weights."""
    late, ever = (json.loads(run(TRAINING.replace("DEFER", d) + THEN_COMPILED, "plain")) for d in (DEFER, ""))
    assert (late.pop("loaded"), ever.pop("loaded")) == (False, True)
    assert late == ever
    assert ever["compiled"]
    assert len(ever["breaks"]) > 1

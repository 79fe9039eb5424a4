"""The command at a real lighthouse."""

from __future__ import annotations

from pathlib import Path

from tests.process.programs import python
from tests.unit.rpc.lighthouse.page.served import served


def test_as_a_process_it_loads_neither_torch_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from torchft_x.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'numpy', 'rich', 'torchx')))"
    )
    with served() as lighthouse:
        assert "at step" in python("-c", code, "status", lighthouse.run_dir(tmp_path)).stdout

"""``torchft_x doctor``: checks this machine's readiness for jobs. It changes and ends nothing.

`runner` runs the checks. `host`, `network`, `software` and `torchx` contain them.
"""

from torchft_x.launch.doctor import host, network, software, torchx
from torchft_x.launch.doctor.runner import Check

CHECKS = (
    Check("python", software.check_python),
    Check("packages", software.check_packages),
    Check("import torch", software.check_torch, seconds=100.0),
    Check("torchx", torchx.check_torchx, seconds=100.0),
    Check("name", network.check_name),
    Check("reverse", network.check_reverse, seconds=8.0, late=network.slow_reverse("does not end within 8 s")),
    Check("lighthouse", network.check_lighthouse, seconds=30.0),
    Check("run dir", host.check_run_dir),
    Check("limits", host.check_limits),
    Check("shared memory", host.check_shared_memory),
    Check("leftovers", host.check_leftovers),
)
"""All checks, in the order in which they are printed."""

import sys

from benchmarks.cli import main
from torchft_x.launch import tree

tree.become_subreaper()  # so that no orphan of a job escapes, however the benchmark ends
try:
    code = main()
finally:
    tree.kill_descendants()
sys.exit(code)

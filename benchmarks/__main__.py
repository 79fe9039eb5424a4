import sys

from benchmarks.cli import main
from torchft_x.launch.process import process_tree

process_tree.become_subreaper()  # so that no orphan of a job escapes, however the benchmark ends
try:
    code = main()
finally:
    process_tree.kill_descendants()
sys.exit(code)

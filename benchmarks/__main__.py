import sys

from benchmarks.cli import main
from torchft_x.launch.process import process_tree

process_tree.become_subreaper()  # orphans of a job become our children, so that the last line kills them, too
try:
    code = main()
finally:
    process_tree.kill_descendants()
sys.exit(code)

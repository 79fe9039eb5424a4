"""As tests.train.worker, but offers its state under a name that nobody knows, and has little patience.

python tests/train/hidden_worker.py GROUP LIGHTHOUSE OUT_FILE STOP_FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.train.worker import main
from tests.util import scaled
from torchft_x.transfer.http.transport import HTTPTransport

if __name__ == "__main__":
    hidden = HTTPTransport(scaled(1.0), host="nowhere.invalid")
    main(
        int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), checkpoint_transport=hidden, timeout=scaled(1.0)
    )

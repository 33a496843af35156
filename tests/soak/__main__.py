"""Run `make soak`: a thousand changes, or the given number."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from .soak import Soak, grown, table

CHANGES = 1_000


def main() -> int:
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        samples = Soak(Path(root)).run(changes, max(10, changes // 20))
    print(table(samples))
    print(f"{changes} changes in {time.monotonic() - began:.0f} s")
    wrong = grown(samples)
    print("\n".join(wrong) or "nothing grows with the number of changes but what is to be kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

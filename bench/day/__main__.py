"""Print one run as a table: `python -m bench.day PROJECTS CHANGES [SCHEDULERS [STORE]]`."""

from __future__ import annotations

import sys

from bench.day.measure import measure
from bench.day.tables import table
from headgate.cli.terminal.screen import Terminal

if __name__ == "__main__":
    projects, changes, schedulers = (int(word) for word in [*sys.argv[1:4], "1"][:3])
    store = sys.argv[4] if len(sys.argv) > 4 else "etcd"
    Terminal().print(table([measure(projects, changes, schedulers, store)], store))

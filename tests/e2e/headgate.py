"""Run `headgate run` as a separate process, on real repositories."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from headgate.testing.servers.program import RunningProcess
from tests.e2e.copies import HEADGATE, Copy
from tests.waiting import wait_for

MAIN = "from headgate.cli.main import main; main()"
"""Directory of this Python's packages: tests run as another user, too."""

SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection local]
driver = git
baseurl = hub
canonical_hostname = git.example
[web]
port = 0
[executor]
builds = 8
"""


class Headgate:
    def __init__(
        self,
        repositories: Repositories,
        tenants: str,
        store: str = "",
        settings: str = SETTINGS,
        *,
        copied: bool = True,
    ) -> None:
        """`store`: its URL; by default a file. `settings`: everything else. `copied`: start as a copy of a process
        that has imported everything."""
        self.root, self.repositories = repositories.root, repositories
        self.store = store or f"sqlite:///{self.root / 'state' / 'headgate.sqlite'}"
        (self.root / "headgate.conf").write_text(f"[store]\nurl = {self.store}\n{settings}")
        (self.root / "tenants.yaml").write_text(tenants)
        self.log = self.root / "headgate.log"
        self.process: RunningProcess | None = None
        self.url, self._copied = "", copied

    def start(self, scheme: str = "http") -> None:
        mark = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as out:
            words, environment = ["run", "--config", "headgate.conf"], {**os.environ, "PYTHONUNBUFFERED": "1"}
            if self._copied and "LD_PRELOAD" not in os.environ:  # whose libraries only a new process loads
                self.process = Copy([HEADGATE, *words], self.root, environment, out)
            else:
                streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                command = [sys.executable, "-c", MAIN, *words]
                self.process = subprocess.Popen(command, cwd=self.root, env=environment, **streams)  # type: ignore[call-overload]

        def address() -> str:
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            found = re.search(rf"pages are at ({scheme}://\S+)/", self.log.read_text()[mark:])
            return found.group(1) if found else ""

        self.url = wait_for("headgate run serves its pages", address)

    def kill(self) -> None:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Return the exit status after a graceful stop."""
        if self.process is None or self.process.poll() is not None:
            return -1
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def get(self, path: str) -> Any:
        """Return the answer; if it asks for a retry, try again."""

        def answered() -> list[Any]:
            try:
                with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as answer:
                    return [json.load(answer)]
            except urllib.error.HTTPError as error:
                if error.code in (422, 503) and error.headers.get("Retry-After"):
                    return []
                raise

        (found,) = wait_for(f"{path} is read", answered)
        return found

    def items(self, pipeline: str) -> list[dict[str, Any]]:
        status = self.get("/api/tenant/example/status")
        queues = [q for p in status["pipelines"] if p["name"] == pipeline for q in p["change_queues"]]
        return [item for q in queues for head in q["heads"] for item in head]

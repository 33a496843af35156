"""Run a certified OpenID provider from npm for tests: `oidc-provider`."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.program import Program, free_ports

NODE = Path(__file__).parents[4] / "tests" / "node"
INSTALLED = shutil.which("node") is not None and (NODE / "node_modules" / "oidc-provider").is_dir()
"""Whether the provider is installed: `make test` installs it where there is npm."""


def pages(url: str) -> dict[str, Any]:
    """Return the provider's client settings for the pages at `url`."""
    return {
        "client_id": "gate",
        "redirect_uris": [f"{url}/login/callback"],
        "token_endpoint_auth_method": "none",
    }


@contextmanager
def openid(root: Path, clients: Sequence[Mapping[str, Any]], people: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Run a provider below `root`, and provide its issuer. `people` maps logins, which accept any password, to
    groups."""
    (port,) = free_ports(1)
    environment = {"PORT": str(port), "CLIENTS": json.dumps(clients), "PEOPLE": json.dumps(people)}
    program = Program(["node", str(NODE / "provider.mjs")], root / "openid", environment)
    program.start()
    issuer = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=DEADLINE_S).close()  # noqa: S310
            return True
        return False

    try:
        program.until(answers)
        yield issuer
    finally:
        program.kill()

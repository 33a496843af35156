"""Run an OpenID provider from npm beside the tests: `oidc-provider`, which is certified."""

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
    """Return the client that the pages at `url` are to a provider."""
    return {
        "client_id": "gate",
        "redirect_uris": [f"{url}/login/callback"],
        "token_endpoint_auth_method": "none",
    }


@contextmanager
def openid(root: Path, clients: Sequence[Mapping[str, Any]], people: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Run one, below `root`; its issuer.  `people`: who logs in, by any password -> their groups."""
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

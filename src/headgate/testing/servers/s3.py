"""A server that speaks S3: moto's, in a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from headgate.adapters.logs.bucket import BucketAddress

TIMEOUT_S = 60.0


@contextmanager
def s3() -> Iterator[str]:
    """Provide the URL of a server that takes any key, for as long as the context lasts."""
    from moto.server import ThreadedMotoServer  # half a second

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def bucket(url: str, name: str, prefix: str = "") -> BucketAddress:
    """Return the address of a new bucket at a server."""
    with urlopen(Request(f"{url}/{name}", method="PUT"), timeout=TIMEOUT_S):  # noqa: S310 - a server of ours
        return BucketAddress(name, prefix, url, access_key="key", secret_key="secret")  # noqa: S106 - of no worth

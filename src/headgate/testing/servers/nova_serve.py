# mypy: ignore-errors
"""Run Nova's services in one process, with a hypervisor that runs no machines, by the Python of Nova's environment.

Arguments: a port, and a file on which every user of the server holds a shared lock; the process ends when none does.
"""

import warnings

warnings.simplefilter("ignore")

from nova.tests.functional import integrated_helpers  # noqa: E402, I001 - it patches what is imported after it

import fcntl  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from socketserver import ThreadingMixIn  # noqa: E402
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server  # noqa: E402

LOOK_S = 1.0


class NovaCloud(integrated_helpers._IntegratedTestBase):
    """Run Nova's services as its own tests do, until the process ends."""

    # Otherwise Nova's test base turns casts between services into calls, and a request would be answered only after the
    # server is built.
    CAST_AS_CALL = False

    def setUp(self):
        """Start all services, with capacity for many machines."""
        self.flags(instances=1000, cores=2000, ram=1024000, group="quota")
        self.flags(compute_driver="fake.FakeDriver")
        super().setUp()
        logging.disable(logging.ERROR)  # its fixtures keep all that is logged, and that is a lot
        warnings.resetwarnings()
        warnings.simplefilter("ignore")

    def runTest(self):
        """Do nothing: the test serves requests itself."""


class NovaServer(ThreadingMixIn, WSGIServer):
    """Serve requests in parallel."""

    daemon_threads = True
    request_queue_size = 64


class QuietHandler(WSGIRequestHandler):
    """Log no requests."""

    def log_message(self, *args):
        """Log nothing."""


def as_user(app):
    """Wrap the application so that it accepts a token `PROJECT.USER.…` as the caller, without Keystone."""

    def application(environ, start_response):
        project, user, *_ = [*environ.get("HTTP_X_AUTH_TOKEN", "").split("."), ""]
        environ |= {"HTTP_X_AUTH_USER": user, "HTTP_X_AUTH_PROJECT_ID": project, "HTTP_X_ROLES": "reader,member"}
        return app(environ, start_response)

    return application


def end_with_the_last(file):
    """End the process when nobody holds the lock any longer."""
    with open(file, "a") as held:
        while True:
            time.sleep(LOOK_S)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            # Threads of Nova would keep an orderly exit waiting.
            os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_last, args=(sys.argv[2],), daemon=True).start()
    cloud = NovaCloud("runTest")
    cloud.setUp()
    make_server(
        "127.0.0.1", int(sys.argv[1]), as_user(cloud.api_fixture.app()), NovaServer, QuietHandler
    ).serve_forever()

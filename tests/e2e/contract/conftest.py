"""Provide the kinds of machines on which the promises are tested: this one, in the sandbox; one over ssh, as another
user; and a container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.testing.servers.sshd import Lab, program
from tests.integration.builds.bench import Bench
from tests.integration.builds.imaged import Images, fetched_images, images

from .account import Account, account
from .stage import Stage

__all__ = ["fetched_images", "images"]
KINDS = ("local", "ssh", "container")
SSHD_MISSING = "needs Debian's package openssh-server"


@pytest.fixture(autouse=True)
async def benches() -> AsyncIterator[None]:
    yield
    while Bench.opened:
        await Bench.opened.pop().runner.close()


@pytest.fixture(scope="session")
def user_of_nodes() -> Iterator[Account | None]:
    with TemporaryDirectory(prefix="hg-node-") as place:
        root = Path(place)
        root.chmod(0o755)
        with account(root) as found:
            yield found


@pytest.fixture
def far(tmp_path: Path, user_of_nodes: Account | None) -> Iterator[Stage]:
    """Use a machine that is reached over ssh."""
    if program() is None:
        pytest.skip(SSHD_MISSING)
    lab = Lab(tmp_path / "lab")
    known, files = (lab.root / "key.pub").read_text(), [str(lab.root / "key.pub")]
    if user_of_nodes is not None:
        user_of_nodes.let_in(known)
        files.append("%h/.ssh/authorized_keys")
    with ExitStack() as stack:
        port = stack.enter_context(lab.server(AuthorizedKeysFile=" ".join(files)))
        yield Stage(tmp_path, lab, port, user_of_nodes)


@pytest.fixture
def contained(tmp_path: Path, images: Images) -> Stage:
    """Use a container as machine."""
    return Stage(tmp_path, images=images)


@pytest.fixture(params=KINDS)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    if request.param == "local":
        return Stage(tmp_path)
    found: Stage = request.getfixturevalue({"ssh": "far", "container": "contained"}[request.param])
    return found

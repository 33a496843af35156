"""A client that knows only the published definitions, against the service as a program."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.store.sqlite import SqliteReader

HERE = Path(__file__).parent
DEADLINE_S = 30


async def run(*command: str, **environment: str) -> str:
    """Its output; raises when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@asynccontextmanager
async def service(directory: Path, *options: str) -> AsyncIterator[str]:
    """Its address."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("headgate")), "inventory", "serve", "--port", "0", *options,
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = ""
        async with asyncio.timeout(DEADLINE_S):
            while not (at := re.search(r"gRPC is at (\S+)", said)):
                line = await process.stdout.readline()
                assert line, said
                said += line.decode()
        yield at[1]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def generated(directory: Path) -> None:
    """The client's modules, from the definitions."""
    out = [f"--python_out={directory}", f"--grpc_python_out={directory}"]
    await run(sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}", *out, str(HERE / "runmetadata.proto"))


async def test_a_client_of_the_published_definitions_works_unchanged(tmp_path: Path) -> None:
    await generated(tmp_path)
    store = tmp_path / "inventory.sqlite"
    async with service(tmp_path, "--store", f"sqlite:///{store}") as address:
        said = await run(sys.executable, str(HERE / "client.py"), address, PYTHONPATH=str(tmp_path))
        assert "every method answers as published" in said
        reader = SqliteReader(store)
        paths = [entry.path for entry in await reader.list("/runm/metadata")]
        await reader.close()
    for layout in (
        r"/runm/metadata/types/object/runm\.image",
        r"/runm/metadata/types/runm\.provider/runm\.compute",
        r"/runm/metadata/partitions/by-uuid/[0-9a-f]{32}",
        r"/runm/metadata/partitions/by-name/part0",
        r"/runm/metadata/definitions/by-uuid/[0-9a-f]{32}",
        r"/runm/metadata/definitions/by-type/runm\.provider/default",
        r"/runm/metadata/partitions/[0-9a-f]{32}/definitions/by-type/runm\.provider/default",
        r"/runm/metadata/partitions/[0-9a-f]{32}/definitions/by-type/runm\.provider/by-type/runm\.compute",
        r"/runm/metadata/objects/by-uuid/[0-9a-f]{32}",
        r"/runm/metadata/partitions/[0-9a-f]{32}/objects/by-type/runm\.provider/by-name/node6",
        r"/runm/metadata/partitions/[0-9a-f]{32}/objects/by-type/runm\.image/by-project/proj0/by-name/debian",
        r"/runm/metadata/partitions/[0-9a-f]{32}/properties/by-type/runm\.image/architecture/x86_64/[0-9a-f]{32}",
        r"/runm/metadata/partitions/[0-9a-f]{32}/tags/unicorn/[0-9a-f]{32}",
    ):
        assert any(re.fullmatch(layout, path) for path in paths), layout

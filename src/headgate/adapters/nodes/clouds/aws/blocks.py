"""Snapshots that files are written into, a block at a time and without a bucket: EBS's direct calls."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headgate.adapters.nodes.clouds.aws import query
from headgate.adapters.nodes.clouds.aws.api import AwsService
from headgate.adapters.nodes.clouds.aws.launch import tag_pairs
from headgate.adapters.nodes.clouds.http import CloudResponse, patient
from headgate.ports.cloud import CloudUnavailable, LaunchFailed
from headgate.ports.images import UPLOAD_TAG

# EBS defines this size and accepts no other.
BLOCK_BYTES = 512 * 2**10
BATCH = 16
"""Blocks that are held in memory and written concurrently."""
IDLE_MAX_MIN = 60
"""Minutes without a write after which EBS drops a snapshot."""
WHOSE = "AWS EBS"
_GIB = 2**30
_ZEROS = bytes(BLOCK_BYTES)
_BLOCK = {
    "content-type": "application/octet-stream",
    "x-amz-data-length": str(BLOCK_BYTES),
    "x-amz-checksum-algorithm": "SHA256",
    "x-amz-content-sha256": "UNSIGNED-PAYLOAD",  # as Amazon's own client does; the checksum is signed
}


class Blocks:
    """Call EBS in one region.  Every method raises AwsRefused, OverQuota, CloudUnavailable."""

    def __init__(self, service: AwsService, url: str) -> None:
        """Use EBS at `url`."""
        self._service, self._url = service, url

    async def start(self, size: int, tags: Mapping[str, str], name: str) -> str:
        """Begin a snapshot of a file with so many bytes; return its id."""
        arguments = {
            # EBS has volumes of whole GiB only.
            "VolumeSize": max(1, -(-size // _GIB)),
            "Description": name,
            "Timeout": IDLE_MAX_MIN,
            "Tags": tag_pairs(tags, UPLOAD_TAG),
        }
        answer = await self._ask(
            "POST", "snapshots", {"content-type": "application/json"}, msgspec.json.encode(arguments)
        )
        return str(answer["SnapshotId"])

    async def write(self, id: str, sha256: str, file: Path) -> None:
        """Write a file into a snapshot, except for its empty blocks, and complete it. Raise LaunchFailed if the file
        cannot be read, or has another digest: then the snapshot is never completed."""
        try:
            written = await self._written(id, sha256, file)
        except OSError as error:
            raise LaunchFailed(f"the file cannot be read: {error.strerror}") from error
        await self._ask("POST", f"snapshots/completion/{id}", {"x-amz-changedblockscount": str(written)})

    async def _written(self, id: str, sha256: str, file: Path) -> int:
        digest, at, written = hashlib.sha256(), 0, 0
        with file.open("rb") as opened:
            while blocks := await asyncio.to_thread(_read, opened, digest.update):
                # Blocks that are never written read as zeros, and most of an image's disk is empty.
                full = [(at + number, block) for number, block in enumerate(blocks) if block != _ZEROS]
                # `return_exceptions`: all writes of the batch end before the error leaves, so none goes on in the
                # background.
                puts = (patient(partial(self._put, id, number, block)) for number, block in full)
                for outcome in await asyncio.gather(*puts, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
                at, written = at + len(blocks), written + len(full)
        # Checked before the completion: until then, nobody can make a volume or an image of the snapshot.
        if digest.hexdigest() != sha256:
            raise LaunchFailed("the file is not any more what its build returned")
        return written

    async def _put(self, id: str, number: int, block: bytes) -> None:
        checksum = base64.b64encode(hashlib.sha256(block).digest()).decode()
        await self._ask("PUT", f"snapshots/{id}/blocks/{number}", {**_BLOCK, "x-amz-checksum": checksum}, block)

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
        return await self._service.ask(method, self._url + path, headers, body, _answer)


def _read(opened: BinaryIO, seen: Any) -> list[bytes]:
    """Return the next blocks, all of one size; `seen` is called with the file's bytes in them."""
    piece = opened.read(BATCH * BLOCK_BYTES)
    seen(piece)
    blocks = [piece[start : start + BLOCK_BYTES] for start in range(0, len(piece), BLOCK_BYTES)]
    # Only the last block of the file can be short.
    return [block.ljust(BLOCK_BYTES, b"\0") for block in blocks]


def _answer(answer: CloudResponse) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(answer.body or b"{}")
    except msgspec.DecodeError:
        decoded = None
    if answer.status < 300 and isinstance(decoded, dict):
        return decoded
    if answer.status < 300:
        raise CloudUnavailable(f"{WHOSE} answers what is not whole")
    document = decoded if isinstance(decoded, dict) else {}
    # The header says `ThrottlingException:http://...`, the body `com.amazonaws.ebs#ThrottlingException`.
    code = (
        str(answer.headers.get("x-amzn-errortype") or document.get("__type") or "").partition(":")[0].rpartition("#")[2]
    )
    code = code if code in query.THROTTLED else code.removesuffix("Exception")
    text = str(document.get("message") or document.get("Message") or document.get("Reason") or "")
    raise query.problem(answer.status, code, text, answer.headers, WHOSE)

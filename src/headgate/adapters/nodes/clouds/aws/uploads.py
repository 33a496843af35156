"""Send image files to AWS: in parts into a bucket of S3, or block by block into a snapshot of EBS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from headgate.adapters.nodes.clouds.aws import query
from headgate.adapters.nodes.clouds.aws.api import AwsService
from headgate.adapters.nodes.clouds.aws.launch import tag_pairs
from headgate.adapters.nodes.clouds.http import ANSWER_MAX_S, CloudResponse, patient
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, CloudUnavailable, LaunchFailed

KEY_PREFIX = "headgate/"
"""Prefix of the keys of all objects; the ids of the system and the upload follow."""
PART_BYTES = 16 * 2**20
"""Length of a part of a file; memory holds one part."""
PARTS_MAX = 10_000
PART_MAX_S, JOIN_MAX_S = 600.0, 1800.0
"""Time limits for S3 to accept a part, and to join all parts into an object."""
PAGES_MAX = 200
TAGS_MAX = 10
"""S3's limit on the tags of an object."""
WHOSE_S3 = "AWS S3"
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_TAG = re.compile(r"[\w +\-=.:/@]{1,128}")
# EBS defines this size and accepts no other.
BLOCK_BYTES = 512 * 2**10
BATCH = 16
"""Number of blocks that memory holds and that are written concurrently."""
IDLE_MAX_MIN = 60
"""Minutes without a write after which EBS cancels a snapshot."""
WHOSE_EBS = "AWS EBS"
_GIB = 2**30
_ZEROS = bytes(BLOCK_BYTES)
_BLOCK_HEADERS = {
    "content-type": "application/octet-stream",
    "x-amz-data-length": str(BLOCK_BYTES),
    "x-amz-checksum-algorithm": "SHA256",
    "x-amz-content-sha256": "UNSIGNED-PAYLOAD",  # as Amazon's own client does; the checksum is signed
}


class BucketEntry(NamedTuple):
    """Name an object, or an unfinished upload of one."""

    key: str
    sending: str = ""
    """Id of an unfinished upload in parts; empty for a complete object."""

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags that the key encodes, because S3's lists contain no tags."""
        system, _, upload = self.key.removeprefix(KEY_PREFIX).rpartition("/")
        return {SYSTEM_TAG: system, UPLOAD_TAG: upload}


def key_of(tags: Mapping[str, str]) -> str:
    """Return the key of an upload's object."""
    return f"{KEY_PREFIX}{tags[SYSTEM_TAG]}/{tags[UPLOAD_TAG]}"


def bucket_address(url: str, name: str, is_path: bool) -> str:
    """Return the URL of a bucket; `is_path`: put its name into the path instead of the host name. Raise LaunchFailed
    for an invalid name."""
    if not _BUCKET_NAME.fullmatch(name):
        text = f"{name!r:.80} is not a valid bucket name" if name else "it names no bucket"
        raise LaunchFailed(f"object-storage of the provider: {text}; set object-storage: {{bucket-name: NAME}}")
    if is_path or "." in name:  # the certificate covers one label before S3's name
        return f"{url}{name}/"
    scheme, _, host = url.partition("://")
    return f"{scheme}://{name}.{host}"


class Bucket:
    """Call S3 for one bucket.  Every method raises AwsRefused, OverQuota, CloudUnavailable."""

    def __init__(self, service: AwsService, name: str, url: str) -> None:
        """Use the bucket at `url`, which `bucket_address` returned."""
        self._service, self.name, self._url = service, name, url

    async def _ask(
        self,
        method: str,
        key: str = "",
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        max_s: float = ANSWER_MAX_S,
    ) -> CloudResponse:
        # Quoted exactly like in Signature Version 4: S3 signs the URL that it receives, so any other form makes the
        # signature invalid.
        url = self._url + quote(key, safe="/~")
        url += f"?{urlencode(sorted(parameters.items()), quote_via=quote, safe='~')}" if parameters else ""
        return await self._service.ask(method, url, headers or {}, body, partial(self._read, method == "HEAD"), max_s)

    def _read(self, is_look: bool, answer: CloudResponse) -> CloudResponse:
        if answer.status < 300 or (is_look and answer.status == 404):
            return answer
        # The redirection is not followed: the signature contains the region, so it would be invalid there.
        if answer.status in (301, 307):
            text = f"the bucket {self.name} is not in the region {self._service.region}"
            raise query.AwsRefused("PermanentRedirect", text)
        if is_look and answer.status == 403:  # such a response has no body
            raise LaunchFailed(f"{WHOSE_S3} does not let Headgate read the bucket {self.name}")
        query.document(answer, WHOSE_S3)
        raise AssertionError("`document` raises for every other status")

    async def has(self, key: str, sha256: str) -> bool:
        """Return whether the object exists and was made from a file with this digest."""
        answer = await self._ask("HEAD", key)
        return answer.status < 300 and answer.headers.get("x-amz-meta-sha256") == sha256

    async def send(self, tags: Mapping[str, str], sha256: str, file: Path) -> None:
        """Send a file in parts.  Raise LaunchFailed if it cannot be read, or has another digest."""
        try:
            await self._send(key_of(tags), tags, sha256, file)
        except OSError as error:
            raise LaunchFailed(f"the file cannot be read: {error.strerror}") from error

    async def _send(self, key: str, tags: Mapping[str, str], sha256: str, file: Path) -> None:
        # Files above 167 GB have larger parts, because S3 accepts at most 10,000.
        size = max(PART_BYTES, -(-os.path.getsize(file) // PARTS_MAX))
        id, parts, digest = await patient(partial(self._begin, key, tags, sha256)), list[str](), hashlib.sha256()
        with file.open("rb") as opened:
            while part := await asyncio.to_thread(opened.read, size):
                await asyncio.to_thread(digest.update, part)
                arguments = {"partNumber": str(len(parts) + 1), "uploadId": id}
                answer = await patient(partial(self._ask, "PUT", key, arguments, body=part, max_s=PART_MAX_S))
                parts.append(answer.headers["etag"])
        # Checked before the parts are joined, so there is no object yet. The parts cost money until they are removed.
        if digest.hexdigest() != sha256:
            await self.remove(BucketEntry(key, id))
            raise LaunchFailed("the file no longer has the digest that its build returned")
        answer = await self._ask("POST", key, {"uploadId": id}, body=_joined(parts), max_s=JOIN_MAX_S)
        # S3 returns 200 before it joins the parts, sends spaces while it works, and may then end with an error.
        query.document(answer._replace(body=answer.body.strip()), WHOSE_S3)

    async def _begin(self, key: str, tags: Mapping[str, str], sha256: str) -> str:
        headers = {"x-amz-meta-sha256": sha256, "x-amz-tagging": urlencode(_object_tags(tags), quote_via=quote)}
        headers["content-type"] = "application/octet-stream"
        answer = query.read(await self._ask("POST", key, {"uploads": ""}, headers), WHOSE_S3)
        return str(answer["UploadId"])

    async def entries(self, prefix: str) -> list[BucketEntry]:
        """Return all objects and all unfinished uploads whose keys have this prefix, from all pages of both lists."""
        mark = {"continuation-token": "NextContinuationToken"}
        marks = {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"}
        try:
            objects = await self._pages("Contents", {"list-type": "2", "prefix": prefix}, mark)
            uploads = await self._pages("Upload", {"uploads": "", "prefix": prefix}, marks)
        except query.AwsRefused as error:
            if error.code not in ("NoSuchBucket", "PermanentRedirect"):
                raise
            return []  # nothing was ever sent there
        found = [BucketEntry(_text(one, "Key")) for one in objects]
        return found + [BucketEntry(_text(one, "Key"), _text(one, "UploadId")) for one in uploads]

    async def _pages(
        self, members: str, arguments: Mapping[str, str], marks: Mapping[str, str]
    ) -> list[ElementTree.Element]:
        """Return the members of all pages. `marks`: argument that selects the next page -> element of the response that
        contains its value."""
        found, mark = list[ElementTree.Element](), dict[str, str]()
        for _ in range(PAGES_MAX):
            root = query.document(await self._ask("GET", "", {**arguments, **mark}), WHOSE_S3)
            found += [one for one in root if query.name_of(one) == members]
            if _text(root, "IsTruncated") != "true":
                return found
            mark = {name: _text(root, element) for name, element in marks.items()}
        raise CloudUnavailable(f"{WHOSE_S3} keeps sending more pages of {members}")

    async def remove(self, entry: BucketEntry) -> None:
        """Delete an object, or an unfinished upload; a missing one is no error."""
        try:
            await self._ask("DELETE", entry.key, {"uploadId": entry.sending} if entry.sending else {})
        except query.AwsRefused as error:
            if error.code not in ("NoSuchUpload", "NoSuchKey"):
                raise


def _object_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that S3 accepts for an object; the snapshot and the image have all tags."""
    first = {name: tags[name] for name in (SYSTEM_TAG, UPLOAD_TAG)}
    more = {n: value for n, value in tags.items() if _TAG.fullmatch(n) and _TAG.fullmatch(value)}
    return dict(list({**first, **more}.items())[:TAGS_MAX])


def _joined(parts: list[str]) -> bytes:
    """Return the body of the request that joins the parts."""
    root = ElementTree.Element("CompleteMultipartUpload", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
    for number, etag in enumerate(parts, 1):
        part = ElementTree.SubElement(root, "Part")
        ElementTree.SubElement(part, "PartNumber").text = str(number)
        ElementTree.SubElement(part, "ETag").text = etag
    return ElementTree.tostring(root)


def _text(element: ElementTree.Element, name: str) -> str:
    return next((one.text or "" for one in element if query.name_of(one) == name), "")


class Blocks:
    """Call EBS in one region.  Every method raises AwsRefused, OverQuota, CloudUnavailable."""

    def __init__(self, service: AwsService, url: str) -> None:
        """Use EBS at `url`."""
        self._service, self._url = service, url

    async def start(self, size: int, tags: Mapping[str, str], name: str) -> str:
        """Begin a snapshot for a file of `size` bytes; return its id."""
        arguments = {
            # Sizes of EBS volumes are multiples of 1 GiB.
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
                # Unwritten blocks read as zeros, and most of an image's disk is empty.
                full = [(at + number, block) for number, block in enumerate(blocks) if block != _ZEROS]
                # With `return_exceptions`, all writes of the batch end before the error is raised, so none continues in
                # the background.
                puts = (patient(partial(self._put, id, number, block)) for number, block in full)
                for outcome in await asyncio.gather(*puts, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
                at, written = at + len(blocks), written + len(full)
        # Checked before the completion, because until then no volume or image can be made of the snapshot.
        if digest.hexdigest() != sha256:
            raise LaunchFailed("the file no longer has the digest that its build returned")
        return written

    async def _put(self, id: str, number: int, block: bytes) -> None:
        checksum = base64.b64encode(hashlib.sha256(block).digest()).decode()
        await self._ask("PUT", f"snapshots/{id}/blocks/{number}", {**_BLOCK_HEADERS, "x-amz-checksum": checksum}, block)

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
        return await self._service.ask(method, self._url + path, headers, body, _answer)


def _read(opened: BinaryIO, seen: Any) -> list[bytes]:
    """Return the next blocks, all padded to one size; call `seen` with the file's own bytes."""
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
        raise CloudUnavailable(f"{WHOSE_EBS} returned an incomplete response")
    document = decoded if isinstance(decoded, dict) else {}
    # The header says `ThrottlingException:http://...`, the body `com.amazonaws.ebs#ThrottlingException`.
    code = (
        str(answer.headers.get("x-amzn-errortype") or document.get("__type") or "").partition(":")[0].rpartition("#")[2]
    )
    code = code if code in query.THROTTLED else code.removesuffix("Exception")
    text = str(document.get("message") or document.get("Message") or document.get("Reason") or "")
    raise query.problem(answer.status, code, text, answer.headers, WHOSE_EBS)

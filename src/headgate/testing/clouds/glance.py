"""Imitate the part of Glance that drivers call: images with properties, whose data are uploaded once and never change.

It follows the documentation of version 2 of the Image API: a record is `queued` until its data arrive, `saving` while
they are stored, then `active`, with digests; it stays `queued` if the data are refused or cut off.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Mapping
from typing import Any

from headgate.testing.servers.faults import FaultAnswer, ReceivedRequest

FORMATS = {"ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "ploop", "iso"}
READ_ONLY = {
    *("status", "checksum", "os_hash_algo", "os_hash_value", "size", "virtual_size", "created_at", "updated_at"),
    *("self", "file", "schema", "direct_url", "owner"),
}
# Small, so that every list of a test has several pages.
_PAGE = 2


def json_answer(status: int, document: Any = None, headers: Mapping[str, str] | None = None) -> FaultAnswer:
    """Return an answer in JSON."""
    body = b"" if document is None else json.dumps(document).encode()
    return FaultAnswer(status, body, {"content-type": "application/json", **(headers or {})})


def refusal(status: int, text: str) -> FaultAnswer:
    """Return an error in Glance's form for clients that accept JSON."""
    return json_answer(status, {"message": f"{text}<br /><br />\n\n\n", "code": f"{status} Error", "title": "Error"})


def disk(content: bytes = b"", backing: int = 0, features: int = 0) -> bytes:
    """Return the first bytes of a qcow2 file. `backing` is the offset of the name of its backing file."""
    return (
        struct.pack(">4sIQ", b"QFI\xfb", 3, backing).ljust(72, b"\0")
        + struct.pack(">Q", features).ljust(32, b"\0")
        + content
    )


class Glance:
    """Hold the images that one project sees."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.size_max = 2**26
        """Size limit of an image in bytes, as Glance's `image_size_cap`."""
        self.slow = 0
        """Number of reads that show an image as `saving` after its data have arrived; the upload then gets no answer,
        as when a load balancer gives up."""
        self.changes = b""
        """Bytes that a broken store adds to the data; empty: it works."""
        self._made = 0
        self._storing: dict[str, tuple[int, bytes]] = {}

    def add(self, **fields: Any) -> str:
        """Add an image as any client would; return its id."""
        self._made += 1
        image = {
            "id": str(uuid.uuid4()),
            "status": "queued",
            "visibility": "shared",
            "protected": False,
            "os_hidden": False,
            "tags": [],
            "checksum": None,
            "os_hash_algo": None,
            "os_hash_value": None,
            "size": None,
            "created_at": f"2026-01-01T00:{self._made // 60:02}:{self._made % 60:02}Z",
            **fields,
        }
        self.images[image["id"]] = image
        return str(image["id"])

    def answer(self, request: ReceivedRequest, path: str, query: Mapping[str, list[str]]) -> FaultAnswer:
        """Answer a call of an image; `path`: below `/v2/images`."""
        self._time_goes_on()
        parts = [part for part in path.split("/") if part]
        if not parts and request.method == "GET":
            return self._listed(query)
        if not parts and request.method == "POST":
            return self._create(json.loads(request.body))
        image = self.images.get(parts[0]) if parts else None
        if image is None:
            return refusal(404, f"No image found with ID {parts[0] if parts else ''}")
        if parts[1:] == ["file"] and request.method == "PUT":
            return self._put(image, request)
        if parts[1:]:
            return refusal(404, "The resource could not be found.")
        if request.method == "DELETE":
            if image["protected"]:
                return refusal(403, f"Image {image['id']} is protected and cannot be deleted.")
            del self.images[image["id"]]
            return json_answer(204)
        return json_answer(200, image)

    def _time_goes_on(self) -> None:
        for id, (looks, data) in list(self._storing.items()):
            self._storing[id] = looks - 1, data
            if looks <= 1:
                del self._storing[id]
                self._store(id, data)

    def _listed(self, query: Mapping[str, list[str]]) -> FaultAnswer:
        marker = query.get("marker", [""])[0]
        wanted = {name: values[0] for name, values in query.items() if name not in ("marker", "limit")}
        # Glance lists the newest first, so a driver that takes the first image of a list has chosen one without knowing
        # it.
        newest = sorted(self.images.values(), key=lambda one: (one["created_at"], one["id"]), reverse=True)
        found = [one for one in newest if all(one.get(name) == value for name, value in wanted.items())]
        ids = [one["id"] for one in found]
        # An image that is deleted between two pages; Glance rejects the marker too.
        if marker and marker not in ids:
            return refusal(400, "Invalid marker: it is not there any more")
        page = found[ids.index(marker) + 1 if marker else 0 :]
        more = {"next": f"/v2/images?marker={page[_PAGE - 1]['id']}"} if len(page) > _PAGE else {}
        return json_answer(200, {"images": page[:_PAGE], "first": "/v2/images", "schema": "/v2/schemas/images", **more})

    def _create(self, fields: Any) -> FaultAnswer:
        if read_only := READ_ONLY & set(fields):
            return refusal(403, f"Attribute '{min(read_only)}' is read-only.")
        if any(name.startswith("os_glance") for name in fields):
            return refusal(403, "Attribute 'os_glance' is reserved.")
        if fields.get("disk_format") not in FORMATS or fields.get("container_format") not in ("bare", "ovf", "docker"):
            return refusal(400, f"Invalid disk_format {fields.get('disk_format')!r}")
        plain = {"protected", "os_hidden", "tags", "min_disk", "min_ram"}
        if any(not isinstance(value, str) for name, value in fields.items() if name not in plain):
            return refusal(400, "Provided object does not match schema 'image': a property is not of type 'string'")
        if any(len(text) > 255 for text in (*fields, fields.get("name", ""))):
            return refusal(400, "Provided object does not match schema 'image': it is too long")
        if fields.get("visibility", "shared") == "public":
            return refusal(403, "You are not authorized to complete publicize_image action.")
        if fields.get("id") in self.images:
            return refusal(409, f"Image ID {fields['id']} already exists!")
        return json_answer(201, self.images[self.add(**fields)])

    def _put(self, image: dict[str, Any], request: ReceivedRequest) -> FaultAnswer:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if headers.get("content-type") != "application/octet-stream":
            return refusal(415, "Unsupported content type.")
        if image["status"] != "queued":
            return refusal(409, f"Image status transition from {image['status']} to saving is not allowed")
        if len(request.body) > self.size_max:
            return refusal(413, f"The size of the data is more than {self.size_max} bytes, which exceeds the limit")
        if self.slow:
            image["status"] = "saving"
            # The data are complete, but the client does not learn that: it must neither send them again nor give up.
            self._storing[image["id"]] = self.slow, request.body
            return FaultAnswer(
                504, b"<html><body><h1>504 Gateway Time-out</h1></body></html>", {"content-type": "text/html"}
            )
        self._store(image["id"], request.body)
        return json_answer(204)

    def _store(self, id: str, data: bytes) -> None:
        # It may have been deleted in the meantime.
        if id in self.images:
            data += self.changes
            self.images[id] |= {
                "status": "active",
                "size": len(data),
                "checksum": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                "os_hash_algo": "sha512",
                "os_hash_value": hashlib.sha512(data).hexdigest(),
            }

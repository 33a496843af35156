"""Serve container images of a test on loopback, with the part of the registry protocol that a pull needs."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
"""Statically linked program of Debian's package busybox-static."""
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
Entry = bytes | str | tuple[int, bytes]
"""Entry of a layer: the content of a program, the target of a link, or the mode and the content of a file."""
PROGRAMS = (
    "sh cat chmod chown chroot cp dd echo env grep head id ip ln ls mkdir mknod mount mv nsenter rm setuidgid sleep "
    "stat test touch true umount unshare wc"
)


def shell(**more: Entry) -> dict[str, Entry]:
    """Return a layer that has a shell and a few programs, and `more`, whose names have `__` for `/`."""
    return {
        "bin/busybox": BUSYBOX.read_bytes(),
        **{f"bin/{name}": "busybox" for name in PROGRAMS.split()},
        "etc/passwd": (0o644, b"root:x:0:0:root:/root:/bin/sh\n"),
        **{name.replace("__", "/"): entry for name, entry in more.items()},
    }


PYTHON = Path("/usr/bin/python3")
_LEFT_OUT = {"__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "tkinter", "pydoc_data", "dist-packages"}


def system(**more: Entry) -> dict[str, Entry]:
    """Return a layer with the programs of a node: this machine's Python, bash, rsync and coreutils, and some users."""
    python = PYTHON.resolve()
    programs = [python, *(Path(place) for name in ("bash", "rsync") if (place := shutil.which(name)))]
    library = Path("/usr/lib") / python.name
    files = (file for file in library.rglob("*") if file.suffix in (".py", ".so") and file.is_file())
    found = [file for file in files if not _LEFT_OUT & {*file.relative_to(library).parts}]
    libraries = {needed for one in (*programs, *found) if one.suffix != ".py" for needed in _needed(one)}
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/sh\n"
    users += "one:x:1001:1001::/home/one:/bin/sh\nother:x:1002:1002::/home/other:/bin/sh\n"
    return {
        **{f"bin/{name}": "busybox" for name in applets},
        **{str(file)[1:]: (file.stat().st_mode & 0o777, file.read_bytes()) for file in (*programs, *found, *libraries)},
        "usr/bin/python3": python.name,
        "bin/bash": "../usr/bin/bash",
        **shell(),
        "etc/passwd": (0o644, users.encode()),
        "etc/group": (0o644, b"root:x:0:\nnogroup:x:65534:\none:x:1001:\nother:x:1002:\n"),
        "root/.profile": (0o644, b""),
        "home/other/.profile": (0o644, b""),
        **{name.replace("__", "/"): entry for name, entry in more.items()},
    }


def _needed(program: Path) -> Iterator[Path]:
    """Yield the libraries that a program loads when it starts, by the paths at which it looks for them."""
    output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    for line in output.splitlines():
        for word in line.split():
            if word.startswith("/"):
                yield Path(word)


class ImageRegistry:
    """Serve images until `close`; `settings` is a file that tells podman how to reach the registry."""

    def __init__(self, place: Path) -> None:
        self.paths = list[str]()
        self._found: dict[str, tuple[str, bytes]] = {}
        """Path -> media type and content."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.paths.append(self.path)
                kind, content = registry._found.get(self.path, ("", b""))
                known = bool(kind) or self.path == "/v2/"
                # podman asks `/v2/` first, to learn whether a registry is there and whether it wants a login.
                content = content if known else b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}'
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.settings = place / "registries.conf"
        self.settings.write_text(f'[[registry]]\nlocation = "{self.address}"\ninsecure = true\n')
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def put(
        self, name: str, *layers: Mapping[str, Entry], tag: str = "1", architecture: str = "", **config: Any
    ) -> str:
        """Serve an image of these layers, path -> entry; return its name.  `config`: Env, User, Entrypoint …"""
        blobs = [_layer(one) for one in layers]
        ours = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        image_config = {
            "architecture": architecture or ours,
            "os": "linux",
            "config": config,
            # An image names its layers as they are unpacked, the manifest as they are sent.
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain) for plain, _ in blobs]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._blob(name, _CONFIG, json.dumps(image_config).encode()),
            "layers": [self._blob(name, _LAYER, packed) for _, packed in blobs],
        }
        content = json.dumps(manifest).encode()
        # podman asks for the tag first and may then ask for the digest that it found.
        for reference in (tag, _digest(content)):
            self._found[f"/v2/{name}/manifests/{reference}"] = _MANIFEST, content
        return f"{self.address}/{name}:{tag}"

    def digest(self, name: str, tag: str = "1") -> str:
        """Return the digest of the stored content."""
        return _digest(self._found[f"/v2/{name}/manifests/{tag}"][1])

    def _blob(self, name: str, kind: str, content: bytes) -> dict[str, Any]:
        self._found[f"/v2/{name}/blobs/{_digest(content)}"] = kind, content
        return {"mediaType": kind, "digest": _digest(content), "size": len(content)}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _layer(entries: Mapping[str, Entry]) -> tuple[bytes, bytes]:
    """Return a tar archive of the entries, first plain and then packed with gzip."""
    plain = archive(entries)
    # The same bytes each time, hence the same digest.
    return plain, gzip.compress(plain, 1, mtime=0)


def archive(entries: Mapping[str, Entry]) -> bytes:
    """Return a tar archive of these, path -> entry."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, entry in entries.items():
            info = tarfile.TarInfo(name)
            if isinstance(entry, str):
                info.type, info.linkname = tarfile.SYMTYPE, entry
                tar.addfile(info)
                continue
            info.mode, content = entry if isinstance(entry, tuple) else (0o755, entry)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()

"""Test images that jobs build: nobody chooses the images of other people's machines, or what the launcher requests
and unpacks."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.imagefiles import FetchedImages
from headgate.adapters.nodes.clouds.podman.engine import check_archive
from headgate.base.zstd import compress
from headgate.config.layout import Layout
from headgate.gate.builds.imagework import image_news
from headgate.ports.clouds import LaunchFailed, NoFile
from tests.unit.config.places import layout

PLAIN = b"a root file system" * 100
TENANT = """
- tenant:
    name: acme
    source:
      forge:
        config-projects: [{ops: {include-provider-config: true}}]
        untrusted-projects: [{app: {include-provider-config: true}}, {evil: {include-provider-config: true}}]
"""


@contextmanager
def served(answers: dict[str, tuple[int, bytes, dict[str, str]]]) -> Iterator[tuple[str, list[str]]]:
    """Provide a server's address, and the requests that it received."""
    requests = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            status, body, headers = answers.get(self.path, (404, b"", {}))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_no_request_goes_to_a_server_that_nobody_named(tmp_path: Path) -> None:
    with served({"/logs/root.tar": (200, PLAIN, {}), "/secret": (200, PLAIN, {})}) as (url, requests):
        files = FetchedImages(tmp_path, [f"{url}/logs/"], 10**6)
        other = url.replace("127.0.0.1", "localhost")
        for bad in (
            f"{url}/secret", f"{url}/logs/../secret", f"{url}/logs/%2e%2e/secret", f"{url}/logs/%252e%252e/secret",
            f"{other}/logs/root.tar", f"{url}.evil.example/logs/root.tar", f"http://a@{url[7:]}/logs/root.tar",
            "file:///etc/passwd", "ftp://127.0.0.1/logs/x", f"{url}/logs\\..\\secret", "http://169.254.169.254/latest/",
            f"{url}/logsecret", "", "http://[::1", f"{url}/logs/a b",
        ):  # fmt: skip
            with pytest.raises(NoFile, match="image_sources"):
                await files.fetch(bad, digest(PLAIN))
        assert requests == []
        path = await files.fetch(f"{url}/logs/root.tar", digest(PLAIN))
        assert path.read_bytes() == PLAIN and files.have(digest(PLAIN)) == path


async def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    answers = {"/logs/x": (302, b"", {"Location": "/logs/in"}), "/logs/in": (200, PLAIN, {})}
    with served(answers) as (url, requests):
        with pytest.raises(NoFile, match="returned status 302"):
            await FetchedImages(tmp_path, [url], 10**6).fetch(f"{url}/logs/x", digest(PLAIN))
        assert requests == ["/logs/x"]


async def test_a_file_whose_digest_differs_from_that_of_the_build_is_deleted(tmp_path: Path) -> None:
    with served({"/x": (200, b"something else", {})}) as (url, _), pytest.raises(NoFile, match="its build returned"):
        await FetchedImages(tmp_path, [url], 10**6).fetch(f"{url}/x", digest(PLAIN))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
async def test_a_file_without_end_and_one_that_unpacks_without_end_are_given_up(tmp_path: Path) -> None:
    bomb = compress(bytes(10**8))
    assert len(bomb) < 10**5
    packed = compress(PLAIN)
    answers = {
        "/large": (200, bytes(2 * 10**6), {}),
        "/bomb.zst": (200, bomb, {}),
        "/gzipped": (200, b"x", {"Content-Encoding": "gzip"}),
        "/garbage.zst": (200, b"garbage", {}),
        "/good.zst": (200, packed, {}),
    }
    with served(answers) as (url, _):
        files = FetchedImages(tmp_path, [url], 10**6)
        for path, why in (
            ("large", "larger than"), ("bomb.zst", "larger than"), ("gzipped", "compresses"),
            ("garbage.zst", "cannot be"),
        ):  # fmt: skip
            with pytest.raises(NoFile, match=why):
                await files.fetch(f"{url}/{path}", digest(bytes(10**8)))
        assert list(tmp_path.iterdir()) == []
        assert (await files.fetch(f"{url}/good.zst", digest(PLAIN))).read_bytes() == PLAIN


def holes(size: int) -> bytes:
    """Return an archive of one file that consists only of holes."""
    content, packed = f"1\n{size}\n0\n".encode().ljust(512, b"\0"), BytesIO()
    fields = {"major": "1", "minor": "0", "name": "hole", "realsize": str(size)}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(
            entry(len(content), {f"GNU.sparse.{name}": text for name, text in fields.items()}), BytesIO(content)
        )
    return packed.getvalue()


def entry(size: int, headers: dict[str, str] | None = None, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo("file")
    found.size, found.type, found.pax_headers = size, kind, headers or {}
    return found


def both() -> bytes:
    """Return a compressed archive whose header contains the magic bytes of an archive."""
    inside = entry(10**7).tobuf() + bytes(10**7) + bytes(1024)
    packed, extra = gzip.compress(inside), bytearray(500)
    extra[257 - 12 : 262 - 12] = b"ustar"
    return packed[:3] + b"\x04" + packed[4:10] + len(extra).to_bytes(2, "little") + bytes(extra) + packed[10:]


def doubled(*sizes: str) -> bytes:
    """Return an archive in which several headers state the size of one file."""
    return b"".join(entry(0, {"size": size}).tobuf(tarfile.PAX_FORMAT)[:1024] for size in sizes)


HUGE = b"\x80" + b"\xff" * 11
BAD_ARCHIVES = {
    "holes": (holes(10**15), "sparse file"),
    "holes of old": (entry(0, kind=b"S").tobuf(), "entry of the kind b'S'"),
    "packed": (both(), "not a plain archive"),
    "link with content": (
        entry(512, kind=tarfile.SYMTYPE).tobuf() + holes(10**15),
        "an entry with content that is not a file",
    ),
    "old file that is a directory": (
        entry(512, kind=b"\0").tobuf() + holes(10**15),
        "an entry with content that is not a file",
    ),
    "two sizes": (doubled("0", "1024"), "two headers"),
    "endless attributes": (entry(2**21, kind=b"x").tobuf() + bytes(2**21), "attributes of more than"),
    "attributes": (entry(512, kind=b"x").tobuf() + b"9999999 a=b\n".ljust(512, b"\0"), "attributes that cannot"),
    "huge": (entry(0).tobuf()[:124] + HUGE + entry(0).tobuf()[136:], "a size that cannot be read"),
    "junk behind": (entry(0).tobuf() + b"x" * 512, "a header in another format"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_an_archive_that_unpacks_to_more_than_its_size_never_reaches_podman(tmp_path: Path, name: str) -> None:
    content, why = BAD_ARCHIVES[name]
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LaunchFailed, match=why):
        check_archive(tmp_path / "x")


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_an_archive_with_every_kind_of_file_of_a_system_is_accepted(tmp_path: Path, format: int) -> None:
    long, content = "d" * 90 + "/" + "n" * (60 if format == tarfile.USTAR_FORMAT else 160), os.urandom(1500)
    with tarfile.open(tmp_path / "x", "w", format=format) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            one = tarfile.TarInfo(f"of-{kind.decode()}")
            one.type, one.linkname = kind, "file"
            tar.addfile(one)
        for headers in ({}, {"SCHILY.xattr.security.capability": "\n=\0x", "size": "1500"}):
            one = entry(len(content), headers)
            one.name = long
            tar.addfile(one, BytesIO(content))
        tar.addfile(tarfile.TarInfo("last"))
    check_archive(tmp_path / "x")
    with (tmp_path / "x").open("r+b") as file:  # the last one is checked
        file.seek(-tarfile.RECORDSIZE, os.SEEK_END)
        rest = file.read()
        file.seek(-len(rest) + rest.index(b"last\0") + 156, os.SEEK_END)
        file.write(b"S")
    with pytest.raises(LaunchFailed, match="of the kind b'S'"):
        check_archive(tmp_path / "x")


OPS = """
- job: {name: base, parent: null, run: base.yaml}
- pipeline: {name: build, manager: independent, post-review: true, success: {zuul: {image-built: true}}}
- pipeline: {name: early, manager: independent, success: {zuul: {image-built: true}}}
- image: {name: debian, type: zuul}
- job: {name: make, run: make.yaml, image-build-name: debian}
- job: {name: plain, run: plain.yaml}
- project: {name: ops, build: {jobs: [make]}}
- project: {name: app, build: {jobs: [plain, theirs]}}
"""


def refused(made: Layout, project: str, job: str) -> bool:
    """Return whether the jobs of a project cannot be frozen because of a foreign image."""
    graph = made.freeze("build", f"git.acme/{project}", "master")
    return any(f"job {job} references an unknown image 'debian'" in one.text for one in graph.errors)


def test_a_job_of_another_project_cannot_say_that_it_builds_an_image() -> None:
    graph = layout({"ops": OPS}, TENANT).freeze("build", "git.acme/ops", "master")
    assert [job.image_build_name for job in graph.jobs] == ["debian"] and not graph.errors
    own = "- job: {name: fake, run: f.yaml, image-build-name: debian}\n- project: {build: {jobs: [fake]}}\n"
    assert refused(layout({"ops": OPS, "app": own}, TENANT), "app", "fake")
    attached = "- project: {build: {jobs: [{make: {vars: {a: 1}}}]}}\n"
    assert refused(layout({"ops": OPS.replace("theirs", "noop"), "evil": attached}, TENANT), "evil", "make")
    variant = "- project: {build: {jobs: [{plain: {image-build-name: debian}}]}}\n"
    assert refused(layout({"ops": OPS, "app": variant}, TENANT), "app", "plain"), "ops attaches it, too"
    changed = "- job: {name: theirs, run: t.yaml, image-build-name: debian}\n"
    assert refused(layout({"ops": OPS, "app": changed}, TENANT), "app", "theirs"), "ops attaches what app has changed"


def test_before_review_nothing_that_a_job_returns_becomes_an_image() -> None:
    pipelines = layout({"ops": OPS}, TENANT).pipelines
    assert image_news(pipelines["build"], "success").built
    assert not image_news(pipelines["early"], "success").built

"""Test that a directory and a bucket store logs alike."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from obstore import sign
from obstore.store import S3Store

from headgate.adapters.logs.bucket import BucketAddress, LogBucket
from headgate.adapters.logs.directory import LogDirectory
from headgate.ports.logstore import LogStore, LogStoreError
from headgate.testing.logstores import SUITE, bucket, keys, pieces, read_all


@pytest.mark.parametrize("example", SUITE)
@pytest.mark.parametrize("kind", ["directory", "bucket"])
async def test_every_log_store_passes_the_conformance_suite(
    kind: str, example: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store: LogStore = LogDirectory(tmp_path / "logs")
    if kind == "bucket":
        server = request.getfixturevalue("s3_server")
        store = LogBucket(bucket(server, f"b{uuid.uuid4().hex}", "of/headgate"))
    await SUITE[example](store)


async def test_a_bucket_stores_the_type_and_encoding_of_each_file(s3_server: str) -> None:
    address = bucket(s3_server, f"b{uuid.uuid4().hex}")
    await LogBucket(address).put("b/a.html", pieces(b"\x1f\x8b"), kind="text/html; charset=utf-8", encoding="gzip")
    config = {"endpoint": s3_server, "access_key_id": "other", "secret_access_key": "other", "region": "us-east-1"}
    anybody = S3Store(address.bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]
    async with (
        httpx.AsyncClient() as client,
        client.stream("GET", sign(anybody, "GET", "b/a.html", timedelta(1))) as answer,
    ):
        headers = answer.headers
    assert (headers["content-type"], headers["content-encoding"]) == ("text/html; charset=utf-8", "gzip")


async def test_an_unavailable_server_and_a_missing_bucket_are_errors_of_the_store(s3_server: str) -> None:
    away = LogBucket(BucketAddress("b", "", "http://127.0.0.1:9", access_key="k", secret_key="s"), retries_max=0)
    none = LogBucket(BucketAddress("no-such-bucket", "", s3_server, access_key="k", secret_key="s"), retries_max=0)
    for store in (away, none):
        with pytest.raises(LogStoreError) as failed:
            await store.put("b/a", pieces(b"1"), kind="text/plain")
        assert "Debug source" not in str(failed.value) and "\n" not in str(failed.value)
    with pytest.raises(LogStoreError):
        await read_all(away, "b/a")


async def test_links_in_a_directory_of_logs_lead_nowhere(tmp_path: Path) -> None:
    store, secret = LogDirectory(tmp_path / "logs"), tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    await store.put("b/a", pieces(b"1"), kind="text/plain")
    (tmp_path / "logs/b/link").symlink_to(secret / "key")
    (tmp_path / "logs/b/dir").symlink_to(secret)
    for key in ("b/link", "b/dir/key"):
        with pytest.raises(LookupError):
            await read_all(store, key)
    assert await keys(store) == ["b/a"]
    await store.delete(["b/dir/key", "b/link"])
    assert (secret / "key").read_text() == "secret"
    assert (tmp_path / "logs").stat().st_mode & 0o077 == 0

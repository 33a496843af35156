"""Test the settings of log storage: an impossible value is an error that names the possible ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.logs.bucket import LogBucket
from headgate.adapters.logs.directory import LogDirectory
from headgate.base.errors import UserError
from headgate.cli.jobs import log_store, retention_policy, runner_settings
from headgate.cli.settings import Settings, read

KEYS = "access_key = a\nsecret_key_file = secret"


def settings(tmp_path: Path, logs: str, more: str = "") -> Settings:
    path = tmp_path / "headgate.conf"
    text = f"[connection local]\nbaseurl = hub\ncanonical_hostname = git.example\n[logs]\n{logs}\n{more}"
    path.write_text(text)
    return read(path, {})


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("url = gs://bucket", "unknown scheme gs://; give a directory or s3://BUCKET/PREFIX"),
        ("url = s3://", "write it as s3://BUCKET or s3://BUCKET/PREFIX"),
        ("url = s3://key:secret@bucket/x", "set keys with access_key and secret_key_file"),
        ("url = s3://bucket?x=1", "write it as s3://BUCKET"),
        ("url = s3://bucket\nendpoint = minio:9000", "give a URL such as https://minio.example:9000, not 'minio:9000'"),
        ("url = s3://bucket\naccess_key = a", "must be set together, or neither"),
        ("url = s3://bucket\naccess_key = a\nsecret_key_file = none", "none cannot be read"),
        ("url = s3://bucket\naccess_key = a\nsecret_key_file = open", "other users can read .*chmod 600"),
        ("url = file://srv/logs", "file://srv/logs does not name a directory; write it as /srv/logs"),
        ("url = file:///", "file:/// does not name a directory"),
        ("url = state/logs/kept", "where executors write their logs"),
        ("url = state", "must be neither inside nor around"),
        ("url = /srv/logs\naccess_key = a", "access_key: this option has no effect because url is a directory"),
        ("endpoint = https://minio.example", "endpoint: this option has no effect because there is no url"),
        ("root = https://logs.example", "root: this option has no effect because there is no url"),
        ("bucket = b", "unknown option 'bucket' in .logs."),
        ("upload_interval = 0", "must be from 1 to 86400"),
        ("keep_days = a week", "must be a whole number"),
    ],
)
def test_meaningless_settings_are_reported(tmp_path: Path, section: str, why: str) -> None:
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(UserError, match=why):
        log_store(settings(tmp_path, section))


def test_directories_and_buckets_are_found_and_no_build_sees_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the bucket\n")
    (tmp_path / "secret").chmod(0o600)
    assert log_store(settings(tmp_path, "")) is None
    directory = settings(tmp_path, "url = kept\nkeep_days = 30\nsize_max_mb = 5")
    found = log_store(directory)
    assert isinstance(found, LogDirectory) and found.root == tmp_path / "kept"
    assert retention_policy(directory).days == 30 and retention_policy(directory).size_max_bytes == 5_000_000
    assert tmp_path / "kept" in runner_settings(directory, "host").hidden
    bucket = settings(tmp_path, f"url = s3://logs/of/headgate\n{KEYS}")
    assert isinstance(log_store(bucket), LogBucket)
    assert tmp_path / "secret" in runner_settings(bucket, "host").hidden
    assert "of the bucket" not in repr(bucket)

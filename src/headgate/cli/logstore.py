"""The log store that the settings name, and how long it keeps logs."""

from __future__ import annotations

import stat
from pathlib import Path
from urllib.parse import urlsplit

from headgate.adapters.logs.directory import LogDirectory
from headgate.adapters.logs.retention import RetentionPolicy
from headgate.base.errors import LackingError, UserError
from headgate.cli.directories import LOG_MODES
from headgate.cli.settings import Settings
from headgate.ports.logstore import LogStore

MB_BYTES = 1_000_000
SECRET_MAX_BYTES = 10_000
NO_LIBRARY = "[logs] url names a bucket, which needs a library: `pip install 'headgate[s3]'` (obstore)"


def log_store(settings: Settings) -> LogStore | None:
    """Return the log store, without a request to it yet; None: logs stay with their executors. Raise UserError."""
    url = settings.get("logs", "url")
    at = f"{settings.path}: [logs]"
    if not url:
        # An option that does nothing is an error: its author believes, for instance, that logs go to a bucket.
        _needless(settings, at, ("endpoint", "access_key", "secret_key_file", "root"), "there is no url")
        return None
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "s3":
        return _bucket(settings, url, at)
    if separator and scheme != "file":
        raise UserError(f"{at} url: {scheme}:// is not known; it is a directory, or s3://BUCKET/PREFIX")
    if separator and (urlsplit(url).netloc or not urlsplit(url).path.strip("/")):
        raise UserError(f"{at} url: {url} is not a directory; file:///srv/logs is one, as /srv/logs is")
    _needless(settings, at, ("endpoint", "access_key", "secret_key_file"), "url is a directory")
    place = settings.place("logs", "url", "") if not separator else Path(urlsplit(url).path)
    own = settings.place("executor", "log_dir", "logs")
    # Otherwise the executor's own logs would count as stored ones, and stored ones as its own.
    if place.resolve().is_relative_to(own.resolve()) or own.resolve().is_relative_to(place.resolve()):
        raise UserError(f"{at} url: {place} and {own}, where executors write logs, must lie apart")
    return LogDirectory(place, LOG_MODES[settings.get("executor", "log_access")])


def _needless(settings: Settings, at: str, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if settings.values.get("logs", {}).get(name):
            raise UserError(f"{at} {name}: it has no effect, as {why}")


def _bucket(settings: Settings, url: str, at: str) -> LogStore:
    """Raise UserError."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc or "//" in prefix:
        raise UserError(f"{at} url: it is s3://BUCKET or s3://BUCKET/PREFIX; keys have options of their own")
    endpoint = settings.get("logs", "endpoint")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname):
        raise UserError(f"{at} endpoint: it is a URL, as https://minio.example:9000, not {endpoint!r}")
    key, secret = settings.get("logs", "access_key"), _secret(settings, at)
    # Half a pair would silently fall back to the credentials of the machine.
    if bool(key) != bool(secret):
        raise UserError(f"{at} access_key and secret_key_file are given both, or neither")
    try:
        from headgate.adapters.logs.bucket import BucketAddress, LogBucket  # a library that few have
    except ImportError as error:
        raise LackingError(f"{settings.path}: {NO_LIBRARY}") from error
    try:
        return LogBucket(
            BucketAddress(parts.netloc, prefix, endpoint, settings.get("logs", "region"), key, secret),
        )
    except ValueError as error:
        raise UserError(f"{at} url: {error}") from error


def _secret(settings: Settings, at: str) -> str:
    """Raise UserError."""
    if not settings.get("logs", "secret_key_file"):
        return ""
    path = settings.place("logs", "secret_key_file", "")
    try:
        # As ssh does with its keys: a secret that others can read is refused, not used with a warning.
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UserError(f"{at} secret_key_file: others may read {path}; `chmod 600` it")
        return path.read_text()[:SECRET_MAX_BYTES].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{at} secret_key_file: {path} cannot be read: {error}") from error


def retention_policy(settings: Settings) -> RetentionPolicy:
    """Return how long logs and artifacts are kept."""
    number = settings.number
    size = int(number("logs", "size_max_mb") * MB_BYTES)
    return RetentionPolicy(number("logs", "keep_days"), number("logs", "artifacts_keep_days"), size)

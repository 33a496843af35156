"""What the settings say of launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.cli.option import Option

if TYPE_CHECKING:
    from headgate.cli.settings import Settings
    from headgate.services.context import Context

MB_BYTES = 1_000_000
LAUNCHER = {
    "host_keys": Option(
        "choice:learn,require",
        "learn",
        "Of machines without the property `host-key`. learn: the key seen first is recorded there, and they are "
        "held to it. require: they are not used.",
    ),
    "probe_interval": Option(
        "seconds",
        "60",
        "How often a machine is probed that has no property `probe-interval`, nor its provider; 0: such are not.",
    ),
    "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
    "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    "image_sources": Option(
        "text",
        "",
        "Addresses, with space between, below which images may be that jobs build, such as a bucket's. What Headgate "
        "itself serves and [logs] root are always among them.",
    ),
    "image_dir": Option("path", "", "Files of such images while they are uploaded. Default: in state_dir."),
    "image_size_max_mb": Option("integer:1,100000000", "50000", "Of one such file, unpacked."),
}


def image_roots(settings: Settings, context: Context) -> tuple[str, ...]:
    """Return the addresses below which images may be that jobs build."""
    own = [f"{context.root_url}/t/"] if context.root_url else []
    logs = [settings.get("logs", "root")] if settings.get("logs", "root") else []
    return (*own, *logs, *settings.get("launcher", "image_sources").split())


def image_size_max(settings: Settings) -> int:
    """Return how many bytes a file of such an image may have."""
    return int(settings.number("launcher", "image_size_max_mb") * MB_BYTES)

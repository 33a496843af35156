"""Options of the settings about launchers."""

from __future__ import annotations

from headgate.cli.option import Option

LAUNCHER = {
    "host_keys": Option(
        "choice:learn,require",
        "learn",
        "For machines without the property `host-key`. learn: the key seen first is recorded there, and they are "
        "held to it. require: they are not used.",
    ),
    "probe_interval": Option(
        "seconds",
        "60",
        "How often machines are probed, unless they or their provider have the property `probe-interval`; 0: never.",
    ),
    "prometheus_port": Option("integer:0,65535", "", "Port of health and figures, 0: a free one. Default: none."),
    "prometheus_addr": Option("text", "127.0.0.1", "Address of that port."),
    "image_sources": Option(
        "text",
        "",
        "Addresses, separated by spaces, below which images that jobs build may lie, such as a bucket's. What Headgate "
        "itself serves and [logs] root are always among them.",
    ),
    "image_dir": Option("path", "", "Files of such images while they are uploaded. Default: in state_dir."),
    "image_size_max_mb": Option("integer:1,100000000", "50000", "Size of one such file, unpacked."),
}

"""Options of the settings file about the retention of logs."""

from __future__ import annotations

from headgate.cli.option import Option

LOGS: dict[str, Option] = {
    "url": Option(
        "text",
        "",
        "Where logs and artifacts stay when their executor is gone: a directory that executors and web share, or "
        "`s3://BUCKET/PREFIX`, which needs `pip install 'headgate[s3]'`. Default: they stay with their executor.",
    ),
    "endpoint": Option("text", "", "s3: the URL of another server than Amazon's, as `https://minio.example:9000`."),
    "region": Option("text", "us-east-1", "s3: the region of the bucket."),
    "access_key": Option(
        "text", "", "s3: the id of the key. Default: what the environment (`AWS_…`) or the machine has."
    ),
    "secret_key_file": Option("path", "", "s3: the file with its secret, which nobody else may read."),
    "root": Option(
        "text",
        "",
        "URL under which everybody may read the store itself, as of a public bucket; then `log_url` of builds that "
        "ended is there. Default: they are read through the pages, by who may read their tenant.",
    ),
    "upload_interval": Option(
        "integer:1,86400",
        "30",
        "Seconds between two uploads of a running build's output; if the executor is killed, later output is lost.",
    ),
    "keep_days": Option("integer:0,100000", "0", "How long logs are kept; 0: for ever."),
    "artifacts_keep_days": Option(
        "integer:0,100000",
        "0",
        "How long other files of builds are kept; 0: as long as their logs.",
    ),
    "size_max_mb": Option("integer:0,1000000000000", "0", "Above this, the oldest builds lose their files; 0: never."),
}

"""Declare every option of the settings file of a queue worker: its kind, its default, and its purpose."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.map.workers import ROOT


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """Declare an option. `kind` is text, path, list, flag, hook, name, address, url, words separated by `|`, or, with
    the bounds `low` and `high`, `whole` (an integer) or `number`."""

    kind: str
    default: str
    doc: str
    low: float = 0
    high: float = 1e9


DAY_S = 86_400.0
RETRY = {
    "attempts": WorkerOption(
        "whole", "3", "How often the job may fail for a message, before the worker gives it up.", 1, 1_000
    ),
    "deaths": WorkerOption(
        "whole", "0", "How often the process may die while a job handles the message. 0: same as `attempts`.", 0, 1_000
    ),
    "losses": WorkerOption(
        "whole", "10", "How often the worker may lose its session while a job handles the message.", 1, 1_000
    ),
    "departures": WorkerOption(
        "whole",
        "10",
        "How often the worker may be stopped while a job handles the message and does not end in time.",
        1,
        1_000,
    ),
    "delay": WorkerOption("number", "1", "Seconds before the second attempt.", 0, DAY_S),
    "factor": WorkerOption("number", "2", "Factor between one delay and the next.", 1, 100),
    "delay_max": WorkerOption("number", "300", "Maximum delay in seconds.", 0, 30 * DAY_S),
    "jitter": WorkerOption("number", "0.2", "Random variation of delays, as a fraction of the delay.", 0, 1),
    "blocking": WorkerOption(
        "flag", "no", "Whether messages behind a failed message wait until it succeeds or is given up."
    ),
    "time_limit": WorkerOption(
        "number", "0", "Maximum seconds for a job; a longer run counts as a failure. 0: no limit.", 0, 30 * DAY_S
    ),
    "batch": WorkerOption(
        "whole", "1", "Maximum number of messages for one call of a job; above 1, it gets a list.", 1, 1_000
    ),
}
OPTIONS: dict[str, dict[str, WorkerOption]] = {
    "qdo-worker": {
        "job": WorkerOption(
            "hook", "", "Required. `module.path:function`, in Python's module path or next to the file."
        ),
        "job_context": WorkerOption(
            "hook", "", "Function that returns a context manager, whose value every job gets as an argument."
        ),
        "job_failure": WorkerOption(
            "hook",
            "",
            "Function to call for every message that becomes a dead letter, or `log` to log it. Dead letters are "
            "stored in any case.",
        ),
        "name": WorkerOption("text", "", "Name of the worker, shown after the host name and the process id."),
        "app": WorkerOption("name", "", "The application. Default: the last part of the path of `connection`."),
        "group": WorkerOption(
            "name",
            "",
            "Group of workers with its own progress; each group gets every message. Default: one group for all.",
        ),
        "namespace": WorkerOption("path", ROOT, "Root path in the store."),
        "concurrency": WorkerOption("whole", "100", "Maximum number of concurrent jobs.", 1, 10_000),
        "threads": WorkerOption(
            "whole",
            "100",
            "Maximum number of concurrent jobs that are plain functions; 1 if they must not run concurrently.",
            1,
            1_000,
        ),
        "listen": WorkerOption("address", "127.0.0.1:0", "Address that serves health and metrics; port 0: a free one."),
        "memory_max_mb": WorkerOption(
            "whole", "0", "Maximum memory of the process; a job that needs more fails. 0: no limit."
        ),
        "drain": WorkerOption("number", "30", "Seconds to let running jobs finish when the worker stops."),
        "wait_interval": WorkerOption("number", "30", "Maximum seconds between two polls of a partition."),
        "page": WorkerOption("whole", "200", "Number of messages of a partition to fetch in one request.", 1, 1_000),
        "commit_count": WorkerOption(
            "whole", "200", "Record progress after this many messages, or after `commit_interval`.", 1, 1_000_000
        ),
        "commit_interval": WorkerOption(
            "number", "1", "Record progress after this many seconds, or after `commit_count`."
        ),
        "patience": WorkerOption(
            "number",
            "60",
            "Seconds after which a message that waits behind higher priorities counts as late. One of five messages "
            "processed is the oldest late one.",
            0,
            DAY_S,
        ),
        "session_timeout": WorkerOption(
            "number", "15", "Seconds without contact to a worker after which others take over.", 1, 3_600
        ),
        "settle": WorkerOption(
            "number", "0.2", "Seconds during which no worker joins or leaves, before workers redistribute partitions."
        ),
        "ca_bundle": WorkerOption("path", "", "File with CA certificates that jobs trust."),
    },
    "partitions": {
        "policy": WorkerOption(
            "automatic|manual|all",
            "",
            "`automatic`: workers share the partitions. `manual` (or `all`): this worker takes all partitions in "
            "`ids`. Default: automatic if `[zookeeper] connection` is set, or else manual.",
        ),
        "ids": WorkerOption(
            "list",
            "",
            "The partitions to process: `QUEUE`, `QUEUE:N`. In queues with priorities, each means its strand. Default: "
            "all.",
        ),
    },
    "queuey": {
        "connection": WorkerOption(
            "list", "http://127.0.0.1:5000/v1/queuey/", "URL of the message server, or of several with one database."
        ),
        "app_key": WorkerOption("text", "", "The key of the application. Default: use the operator's token."),
    },
    "tls": {
        "ca": WorkerOption(
            "path",
            "",
            "CA of the message servers' certificates, PEM. Default: `[tls] ca` of Headgate's settings, and the "
            "system's CAs.",
        ),
    },
    "zookeeper": {
        "connection": WorkerOption("text", "", "`HOST:PORT,…/PATH`; the path replaces `namespace`."),
        "party_wait": WorkerOption("number", "0.2", "The original's name for `settle`."),
    },
    "store": {
        "url": WorkerOption(
            "url",
            "sqlite:///qdo-worker.sqlite",
            "`zookeeper://…`, `etcd://…`, `sqlite:///FILE` for a single worker, or `server:`: the message server "
            "leases partitions to workers and stores their progress, so that they need no store.",
        ),
    },
    "retry": RETRY,
    "queue *": {
        "job": WorkerOption("hook", "", "The job for queues whose names match. Default: the one in `[qdo-worker]`."),
        **RETRY,
    },
}
IGNORED = ("metlog", "default")
"""Prefixes of sections in old files that have no effect, or that are read elsewhere."""
SERVER = "server:"
"""Store URL for workers without a store."""
_COUNTED = "the server counts attempts that did not end, and allows three"
_RECORDED = "each message is recorded as soon as its job succeeds"
NOT_LEASED: dict[tuple[str, str], str] = {
    ("qdo-worker", "job_failure"): "the server gives messages up; `headgate queue dead` shows them",
    ("qdo-worker", "namespace"): "there is no store",
    ("qdo-worker", "commit_count"): _RECORDED,
    ("qdo-worker", "commit_interval"): _RECORDED,
    ("qdo-worker", "settle"): "a worker keeps a partition while it has messages to process",
    ("qdo-worker", "patience"): "the server chooses the next message; there, messages are late after 60 s",
    ("partitions", "policy"): "workers always share the partitions, so only `automatic` is allowed",
    ("zookeeper", "connection"): "progress can be stored in one place only",
    ("zookeeper", "party_wait"): "as `settle`",
    **{
        (section, option): why
        for section in ("retry", "queue *")
        for option, why in (
            ("deaths", _COUNTED),
            ("losses", _COUNTED),
            ("departures", _COUNTED),
            ("blocking", "messages behind a failed message do not wait"),
            ("batch", "a job always gets one message"),
        )
    },
}
"""(section, option) -> why it is an error for workers without a store."""
_HEAD = """# Options of queue workers

`headgate worker -c FILE` reads an INI file with the sections and names of the original qdo, and more. Times are in
seconds. `${NAME}` inserts an environment variable, `"…"` preserves spaces, and ` ;` or ` #` begins a comment, even
after a value. An unknown name or an invalid value is an error with file and line. `[default] extends = FILE …` takes
options that are not set from other files; sections whose names begin with `metlog` are ignored. `[queue PATTERN]`
replaces `[retry]` for queues whose names match (`*`, `?`, `[…]`); the first matching section applies."""

_LEASED = """## Workers without a store

With `[store] url = server:`, a worker needs only the message server; this also works next to a gate on SQLite. The
worker leases partitions for `session_timeout` at a time, and shares them with all workers of its `group` that lease,
written in any language. These options have no meaning there, and are errors:"""


def reference() -> str:
    """Return the reference page."""
    lines = [_HEAD, ""]
    for section, options in OPTIONS.items():
        heading = section.replace("*", "PATTERN")
        lines += [f"## [{heading}]", "", "| option | value | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {_kind(one)} | {f'`{one.default}`' if one.default else ''} | {one.doc} |"
            for name, one in options.items()
        ]
        lines.append("")
    lines += [_LEASED, ""]
    reasons = {(option, why): section for (section, option), why in reversed(NOT_LEASED.items())}
    for (option, why), section in reversed(reasons.items()):
        lines.append(f"- `{option}` of `[{section}]`: {why}.")
    lines.append("")
    return "\n".join(lines)


def _kind(option: WorkerOption) -> str:
    if option.kind in ("whole", "number"):
        word = "whole number" if option.kind == "whole" else "number"
        return f"{word}, {option.low:g} to {option.high:,.0f}"
    return {"flag": "yes or no", "hook": "function", "list": "several, with commas or on lines"}.get(
        option.kind, option.kind.replace("|", " or ")
    )

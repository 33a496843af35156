"""Declare every option of the settings file of a queue worker: its kind, its default, and its purpose."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.map.workers import ROOT


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """Declare an option. `kind` is text, path, list, flag, hook, name, address, url, or words separated by `|`; for
    numbers, `whole` or `number`, with `low` and `high`."""

    kind: str
    default: str
    doc: str
    low: float = 0
    high: float = 1e9


DAY_S = 86_400.0
RETRY = {
    "attempts": WorkerOption("whole", "3", "How often the job of a message may fail, then it is given up.", 1, 1_000),
    "deaths": WorkerOption(
        "whole", "0", "How often the process may end while a job has the message. 0: as `attempts`.", 0, 1_000
    ),
    "losses": WorkerOption("whole", "10", "How often the worker may lose its session meanwhile.", 1, 1_000),
    "departures": WorkerOption(
        "whole", "10", "How often the worker may be stopped meanwhile, without the job ending in time.", 1, 1_000
    ),
    "delay": WorkerOption("number", "1", "Seconds before the second try.", 0, DAY_S),
    "factor": WorkerOption("number", "2", "The factor by which each delay exceeds the one before.", 1, 100),
    "delay_max": WorkerOption("number", "300", "The longest delay, in seconds.", 0, 30 * DAY_S),
    "jitter": WorkerOption("number", "0.2", "Delays are longer or shorter by up to this part, by chance.", 0, 1),
    "blocking": WorkerOption("flag", "no", "Those behind a failed message wait until it is done or given up."),
    "time_limit": WorkerOption("number", "0", "Seconds a job may take; longer is a failure. 0: any.", 0, 30 * DAY_S),
    "batch": WorkerOption("whole", "1", "Messages a job is given at once; above 1 it is given a list.", 1, 1_000),
}
OPTIONS: dict[str, dict[str, WorkerOption]] = {
    "qdo-worker": {
        "job": WorkerOption("hook", "", "Required. `module.path:function`, as Python finds it, or beside the file."),
        "job_context": WorkerOption("hook", "", "Gives a context manager; what that yields is passed to every job."),
        "job_failure": WorkerOption(
            "hook",
            "",
            "Called for every message that is given up; `log` only logs it. Dead letters are stored in any case.",
        ),
        "name": WorkerOption("text", "", "Shown behind the name of the host and the number of the process."),
        "app": WorkerOption("name", "", "The application. Default: the last part of the path of `connection`."),
        "group": WorkerOption(
            "name",
            "",
            "A group of workers with progress of its own: each group gets every message. Default: one for all.",
        ),
        "namespace": WorkerOption("path", ROOT, "The path below which everything lies in the store."),
        "concurrency": WorkerOption("whole", "100", "Jobs at once.", 1, 10_000),
        "threads": WorkerOption(
            "whole",
            "100",
            "How many of these may be plain functions; 1 if they must not run at the same time.",
            1,
            1_000,
        ),
        "listen": WorkerOption("address", "127.0.0.1:0", "Where health and figures are; port 0: a free one."),
        "memory_max_mb": WorkerOption("whole", "0", "Memory of the process; a job that wants more fails. 0: any."),
        "drain": WorkerOption("number", "30", "Seconds for running jobs when the worker is asked to stop."),
        "wait_interval": WorkerOption("number", "30", "Seconds, at most, until a partition is looked at unasked."),
        "page": WorkerOption("whole", "200", "Messages of a partition fetched at once.", 1, 1_000),
        "commit_count": WorkerOption("whole", "200", "Progress is recorded after this many messages.", 1, 1_000_000),
        "commit_interval": WorkerOption("number", "1", "Or after this many seconds."),
        "patience": WorkerOption(
            "number",
            "60",
            "Seconds after which a message that waits for those of higher priorities is late: one in five is the "
            "oldest late one.",
            0,
            DAY_S,
        ),
        "session_timeout": WorkerOption(
            "number", "15", "Seconds without a sign of life until others take over.", 1, 3_600
        ),
        "settle": WorkerOption("number", "0.2", "Seconds without coming and going before partitions are handed over."),
        "ca_bundle": WorkerOption("path", "", "Certificates of the authorities that are trusted."),
    },
    "partitions": {
        "policy": WorkerOption(
            "automatic|manual|all",
            "",
            "`automatic`: workers share the partitions. `manual` (or `all`): this one takes all it is for. "
            "Default: automatic where `[zookeeper] connection` is set.",
        ),
        "ids": WorkerOption(
            "list",
            "",
            "The partitions it is for: `QUEUE`, `QUEUE:N`. With priorities each stands for its strand. Default: all.",
        ),
    },
    "queuey": {
        "connection": WorkerOption(
            "list", "http://127.0.0.1:5000/v1/queuey/", "The message server, or several of one database."
        ),
        "app_key": WorkerOption("text", "", "The key of the application. Without it the operator's token is used."),
    },
    "tls": {
        "ca": WorkerOption(
            "path",
            "",
            "The authority of the message servers' certificates, PEM. Default: as `[tls] ca` of Headgate's settings, "
            "and those that the system knows.",
        ),
    },
    "zookeeper": {
        "connection": WorkerOption("text", "", "`HOST:PORT,…/PATH`; the path takes the place of `namespace`."),
        "party_wait": WorkerOption("number", "0.2", "The original's name of `settle`."),
    },
    "store": {
        "url": WorkerOption(
            "url",
            "sqlite:///qdo-worker.sqlite",
            "`zookeeper://…`, `etcd://…`, `sqlite:///FILE` for one worker alone, or `server:`: the message server "
            "leases partitions to workers and keeps how far they are, so that they need no store.",
        ),
    },
    "retry": RETRY,
    "queue *": {
        "job": WorkerOption("hook", "", "The job of queues whose names fit. Default: that of `[qdo-worker]`."),
        **RETRY,
    },
}
IGNORED = ("metlog", "default")
"""Beginnings of the names of sections in old files that have no effect here, or are read elsewhere."""
SERVER = "server:"
"""URL of the store for workers that have none."""
_COUNTED = "the server counts the tries that did not end: the third is the last"
_RECORDED = "each message is recorded as soon as it is done"
NOT_LEASED: dict[tuple[str, str], str] = {
    ("qdo-worker", "job_failure"): "the server gives messages up; `headgate queue dead` shows them",
    ("qdo-worker", "namespace"): "nothing is stored in a store",
    ("qdo-worker", "commit_count"): _RECORDED,
    ("qdo-worker", "commit_interval"): _RECORDED,
    ("qdo-worker", "settle"): "whoever has a partition keeps it while something is to be done there",
    ("qdo-worker", "patience"): "the server says which message comes next, after 60 s",
    ("partitions", "policy"): "workers share the partitions in any case, so that only `automatic` can be said",
    ("zookeeper", "connection"): "progress is kept in one place only",
    ("zookeeper", "party_wait"): "as `settle`",
    **{
        (section, option): why
        for section in ("retry", "queue *")
        for option, why in (
            ("deaths", _COUNTED),
            ("losses", _COUNTED),
            ("departures", _COUNTED),
            ("blocking", "those behind a failed message go on"),
            ("batch", "a job is given one message"),
        )
    },
}
"""(section, option) -> why it is an error for workers without a store."""
_HEAD = """# Options of queue workers

`headgate worker -c FILE` reads an INI file with the sections and names of the original qdo, and more. Times are in
seconds. `${NAME}` stands for an environment variable, `"…"` keeps blanks, and ` ;` or ` #` begins a comment, also
behind a value. A name, a value or a number that cannot be is an error with file and line. `[default] extends = FILE …`
takes options that are not set from other files; sections whose names begin with `metlog` are left alone.
`[queue PATTERN]` takes the place of `[retry]` for queues whose names fit (`*`, `?`, `[…]`); the first counts."""

_LEASED = """## Workers without a store

With `[store] url = server:` a worker needs nothing but the message server, beside a gate on SQLite as anywhere else. It
leases partitions, for `session_timeout` at a time, and shares them with all workers of its `group` that do so, in any
language. These options mean nothing there, and are errors:"""


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

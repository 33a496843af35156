"""Keep what people and jobs who mean harm send: every entry once broke something, or is next to one that did."""

from __future__ import annotations

from typing import Any

_DEEP: Any = "x"  # JSON
for _ in range(200):
    _DEEP = [_DEEP]

RETURNS: tuple[Any, ...] = (  # whatever a job writes
    {"zuul": {"child_jobs": [{}]}},
    {"zuul": {"child_jobs": "unit"}},
    {"zuul": {"child_jobs": [["unit"]]}},
    {"zuul": {"child_jobs": None}},
    {"zuul": {"child_jobs": ["no-such-job", "unit", "unit"]}},
    {"zuul": {"log_url": "http://["}},
    {"zuul": {"log_url": 7}},
    {"zuul": {"log_url": "javascript:alert(1)"}},
    {"zuul": {"artifacts": [{"name": "a", "url": "http://["}]}},
    {"zuul": {"artifacts": {"name": "a"}}},
    {"zuul": {"artifacts": [{"name": [], "url": {}}, None, 3, {"url": "x", "name": "a", "metadata": "x"}]}},
    {"zuul": {"artifacts": [{"name": "a" * 5_000, "url": "x" * 5_000}] * 20}},
    {"zuul": {"warnings": "one"}},
    {"zuul": {"warnings": [{}, [], None, "\x1b[2J\u202e", "w" * 10_000]}},
    {"zuul": {"file_comments": [1]}},
    {"zuul": {"file_comments": {"../../etc/passwd": [{"line": -(10**30), "message": None, "range": "x"}]}}},
    {"zuul": {"pause": "yes"}},
    {"zuul": {"retry": []}},
    {"zuul": {"retry": False}},
    {"zuul": []},
    {"zuul": None},
    {"zuul": {"zuul": {"zuul": {}}}},
    {"ansible_host": "127.0.0.1", "zuul_execution_trusted": "True", "": "", "\x00": "\x00"},
    {"{{ lookup('pipe', 'id') }}": "{{ lookup('pipe', 'id') }}"},
    {"deep": _DEEP},
    {"number": 10**18, "float": 1e308, "nested": {"\u2028": ["\ufffe"]}},
    {"surrogate": "\ud800"},
    {"many": {str(n): n for n in range(3_000)}},
    [],
    None,
    "text",
)
RESULTS: tuple[str | None, ...] = (
    *["SUCCESS"] * 12, "FAILURE", None, "", "success", "NO SUCH RESULT", "LANDED", "\x1b[31mSUCCESS",
)  # fmt: skip
NAMES = (
    "topic", "t'\"<script>alert(1)</script>", "a/" * 30 + "a", "-rf", "%00", "%2e%2e", "ünï", "\u202egnp.exe",
    "x" * 200, "{{7*7}}", "$(id)", "`id`", "[bold red]x[/]", "refs/heads/master", "HEAD", "a;b|c&d", "tenant",
    "'; DROP TABLE builds; --",
)  # fmt: skip
"""Odd parts of topic names: git accepts all of them."""
TEXTS = (
    "", "\n", "Harmless", "\x1b]0;title\x07\x1b[2J", "Depends-On: " + "x" * 2_000, "Depends-On: a/master/t0\n" * 300,
    "\u202eRight to left", "NUL \x00 in it", "x" * 100_000, "Headgate (gate):\nLanded on master as 0000", "{{ 7 * 7 }}",
)  # fmt: skip
"""Odd texts of commit messages."""


def _checked(*stanzas: str, jobs: str = "attack") -> str:
    """Declare what is given, and have the jobs run in the check pipeline."""
    return "".join(f"- {stanza}\n" for stanza in (*stanzas, f"project: {{check: {{jobs: [{jobs}]}}}}"))


def _job(more: str = "", name: str = "attack") -> str:
    return f"job: {{name: {name}, parent: base{', ' if more else ''}{more}}}"


_ALIASES = ", ".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(9))
_MANY = [f"m{n}" for n in range(60)]
CONFIGS = (
    "",
    _checked(_job()),
    _checked("job: {name: unit, run: jobs/evil}", jobs="unit"),
    "- pipeline:\n    name: gate\n    manager: independent\n    trigger: {sim: [{event: change-proposed}]}\n"
    "    success: {sim: {land: true}}\n",
    _checked("job: {name: attack, parent: attack}"),
    _checked(*(f"job: {{name: j{n}, parent: {f'j{n - 1}' if n else 'base'}}}" for n in range(60)), jobs="j59"),
    _checked(*(_job(name=name) for name in _MANY), jobs=", ".join(_MANY)),
    _checked(_job("dependencies: [unit, {name: nobody, soft: true}]"), jobs="unit, attack"),
    _checked(_job("semaphores: [{name: one}], attempts: 10")),
    _checked(_job("attempts: 1000000, timeout: 99999999999")),
    _checked(_job(r"branches: '^(?!(a+)+$).*$', files: ['^(x+x+)+y', '(', '\\1']")),
    _checked(_job("required-projects: [a, b, config, evil, nowhere]")),
    "- project: {name: a, check: {jobs: [noop]}, gate: {jobs: [noop]}}\n",
    "- project: {queue: shared, gate: {jobs: [noop]}, check: {jobs: [noop]}}\n",
    _checked("semaphore: {name: one, max: 0}", _job("semaphores: one")),
    _checked("secret: {name: s, data: {x: !encrypted/pkcs1-oaep [YWJj]}}", _job("secrets: s, run: jobs/x")),
    _checked(_job(f"vars: {{a: &a [x, x, x, x, x, x, x, x, x], {_ALIASES}}}")),
    "[" * 5_000,
    _checked(_job("vars: {x: " + "9" * 5_000 + "}")),
    _checked(_job("vars: {x: .nan, y: .inf, z: 2001-01-01}")),
    "- !!python/object/apply:os.system ['true']\n",
    "- job: &a {name: attack, vars: *a}\n",
    "\x00",
    "---\n" * 2_000,
    _checked(_job(name="'a/../../b'"), jobs="'a/../../b'"),
    _checked(_job(name=r'"\u202e\e[2J"'), jobs=r'"\u202e\e[2J"'),
)
"""Odd configuration files that proposals of an untrusted project may contain."""

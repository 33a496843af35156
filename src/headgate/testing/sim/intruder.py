"""Act as a hostile proposer, and list hostile inputs of people and jobs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from headgate.gate.state.change import Change
from headgate.testing.fuzz import PUNCTUATION
from headgate.testing.sim.worlds import BRANCH, EVIL, PROJECTS, Harm, SimWorld

ACTS_MAX = 8
FLOODS = (5, 20, 40)
"""Numbers of changes that are proposed at one moment."""
PAUSE_MAX_S = 1.5

_DEEP: Any = "x"  # JSON
for _ in range(200):
    _DEEP = [_DEEP]

RETURNS: tuple[Any, ...] = (
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
"""Odd data that jobs return."""
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
    """Declare the stanzas, and run the jobs in the check pipeline."""
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


@dataclass(slots=True)
class Intruder:
    """Act as an intruder; equal chances give equal runs."""

    world: SimWorld
    chance: random.Random
    flood: int = 0
    """Number of changes that are proposed at one moment at the beginning."""
    _commits: int = 0

    async def run(self) -> None:
        for _ in range(self.flood):
            self._propose()
        for _ in range(self.chance.randrange(1, ACTS_MAX + 1)):
            match self.chance.randrange(8):
                case 0:
                    for _ in range(self.chance.choice(FLOODS)):
                        self._propose()
                case 1:
                    self._withdraw()
                case 2:
                    self._replace()
                case _:
                    self._propose()
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)

    def _own(self) -> list[str]:
        return sorted(key for key, change_state in self.world.open.items() if change_state.change.project == EVIL)

    def _propose(self) -> None:
        topic = self.chance.choice(NAMES) + str(self._commits)
        needs = tuple(self._needed(topic) for _ in range(self._few()))
        files = self.chance.choice([None, (), ("zuul.yaml",), ("x", "zuul.yaml"), ("\x1b[2J", "../../x", "zuul.d/")])
        change = Change(
            "sim", EVIL, BRANCH, topic, ref=f"refs/for/{BRANCH}/{topic}", message=self.chance.choice(TEXTS),
            owner=self.chance.choice(TEXTS)[:200], files=files, needs=tuple(dict.fromkeys(needs)),
            unresolved=tuple(self.chance.choice(TEXTS)[:500] for _ in range(self._few())),
        )  # fmt: skip
        self.world.propose(self._patchset(change), approved=False)

    def _needed(self, topic: str) -> str:
        """Choose an honest change, another hostile one, itself, or a missing one."""
        honest = [key for key, change_state in self.world.open.items() if change_state.change.project != EVIL]
        among = honest if honest and self.chance.random() < 0.6 else [*self.world.open]
        none = f"{self.chance.choice([EVIL, *PROJECTS])}/{BRANCH}/{topic}"
        return self.chance.choice([*among, none])

    def _few(self) -> int:
        return self.chance.choice([0, 0, 0, 1, 3])

    def _patchset(self, change: Change) -> Change:
        commit = f"e{self._commits}"
        self._commits += 1
        chance = self.chance
        error = ValueError(f"an unreadable object: {chance.choice(TEXTS)[:100]}")
        self.world.harms[commit] = Harm(
            config=self._config(),
            returned=chance.choice(RETURNS) if chance.random() < 0.6 else {},
            merging=error if chance.random() < 0.05 else None,
            running=error if chance.random() < 0.1 else None,
            result=chance.choice(RESULTS),
        )
        return replace(change, commit=commit)

    def _config(self) -> str:
        """Choose one of `CONFIGS`; sometimes change a few letters of it."""
        text = self.chance.choice(CONFIGS)
        if not text or self.chance.random() < 0.7:
            return text
        letters = list(text[:2_000])
        for _ in range(self.chance.randrange(1, 6)):
            letters[self.chance.randrange(len(letters))] = self.chance.choice(PUNCTUATION)
        return "".join(letters)

    def _withdraw(self) -> None:
        if own := self._own():
            self.world.withdraw(self.chance.choice(own))

    def _replace(self) -> None:
        """Propose a new patchset of one change, many times over."""
        if own := self._own():
            change = self.world.open[self.chance.choice(own)].change
            for _ in range(self.chance.randrange(1, 6)):
                self.world.propose(self._patchset(change), approved=False)

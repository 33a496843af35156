"""Serve what people see of a stand-in in a browser: a page of its changes, one of each, and what they can do there.

They are no copies of a forge's own pages: they show what it knows of a change, in one plain form for all forges.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Protocol
from urllib.parse import quote, urlsplit

from aiohttp import web

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1f2328;max-width:54rem;margin:1rem auto;padding:0 1rem}
header{background:#fff8c5;border:1px solid #d4a72c;padding:.3rem .7rem;font-size:.85rem}
h1{font-size:1.35rem;margin:.8rem 0 .2rem}h2{font-size:1rem;margin:1.1rem 0 .3rem}
.of{color:#59636e}table{border-collapse:collapse;width:100%}
td{border-top:1px solid #d1d9e0;padding:.3rem .5rem .3rem 0;vertical-align:top}
.word{font-weight:600}.good{color:#1a7f37}.bad{color:#d1242f}.open{color:#9a6700}
article{border:1px solid #d1d9e0;border-radius:6px;margin:.6rem 0}
article>p{margin:0;background:#f6f8fa;padding:.3rem .7rem}
.text{white-space:pre-wrap;overflow-wrap:anywhere;padding:.5rem .7rem}
.label{border:1px solid #59636e;border-radius:1rem;padding:0 .5rem;font-size:.85rem}
form{margin:.6rem 0}textarea,input{width:100%;box-sizing:border-box;font:inherit}button,select{font:inherit}
"""
# No script may run at all, so what jobs and strangers write cannot act even if escaping fails somewhere.
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_GOOD = frozenset({"success", "approved", "merged", "landed"})
_BAD = frozenset({"failure", "failed", "error", "cancelled", "canceled", "closed", "asked for changes", "timed_out"})
_OPEN = frozenset({"open", "draft", "pending", "queued", "running", "in_progress"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HIDDEN = re.compile(r"\s*<!--.*?-->", re.DOTALL)
# Escape the text before looking for addresses in it: an escaped quote or bracket then ends an address.
_URL = re.compile(r"https?://(?:(?!&quot;|&#x27;|&lt;|&gt;)[^\s)\]])+")
_STRONG = re.compile(r"\*\*([^*\n]+)\*\*")


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """Represent the verdict of one program on a change."""

    name: str
    state: str
    """State in the forge's own terms."""
    text: str = ""
    url: str = ""
    lines: tuple[str, ...] = ()
    """Annotations on lines of files."""


@dataclass(frozen=True, slots=True)
class PageRemark:
    who: str
    at_s: float
    did: str
    """commented | approved | asked for changes …"""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PageChange:
    """Describe one change as people see it."""

    path: str
    """Path of its page on the forge."""
    name: str
    """Short name, such as acme/core#1."""
    title: str
    author: str
    state: str
    """open | merged | closed"""
    source: str
    target: str
    text: str = ""
    labels: tuple[str, ...] = ()
    marks: tuple[ChangeMark, ...] = ()
    remarks: tuple[PageRemark, ...] = ()


BY_BRANCH = "To propose a change, push a branch, and open the change here."


class PageActions(Protocol):
    """Declare what a stand-in shows and what people do there; each action raises `refused` if the forge rejects it."""

    @property
    def forge(self) -> str: ...
    @property
    def kind(self) -> str:
        """Return the kind of this server: a stand-in for the forge, or the forge itself."""
        ...

    @property
    def hint(self) -> str:
        """Return how people begin a change."""
        ...

    @property
    def root(self) -> str:
        """Return the path prefix of all pages."""
        ...

    @property
    def refused(self) -> type[Exception]: ...
    async def seen(self) -> Sequence[PageChange]:
        """Return the changes that strangers may see."""
        ...

    def people(self) -> Sequence[str]: ...
    def branches(self) -> Sequence[str]:
        """Return branches without an open change, as `project:branch`."""
        ...

    async def comment(self, path: str, who: str, text: str) -> None: ...
    async def approve(self, path: str, who: str) -> None: ...
    async def propose(self, branch: str, who: str, title: str, text: str) -> str:
        """Open a change from one of `branches`; return the path of its page."""
        ...


@dataclass(frozen=True, slots=True)
class FakePages:
    """Serve the pages."""

    actions: PageActions

    def add(self, app: web.Application, change: str) -> None:
        """Serve them.  `change`: the route of a change's page."""
        home = f"{self.actions.root}/"
        app.router.add_get(home, self._list)
        app.router.add_post(home, self._propose)
        app.router.add_get(change, self._change)
        app.router.add_post(change, self._act)

    async def _list(self, request: web.Request) -> web.Response:
        return self._page(200, "Changes", self._listed(await self.actions.seen()))

    async def _change(self, request: web.Request) -> web.Response:
        one = await self._found(request)
        if one is None:
            return self._page(404, "Not found", "<p>There is no such change, or it is not for everybody.</p>")
        return self._page(200, f"{one.name}: {one.title}", self._shown(one))

    async def _found(self, request: web.Request) -> PageChange | None:
        return next((one for one in await self.actions.seen() if one.path == request.path.rstrip("/")), None)

    # --- what people do

    async def _act(self, request: web.Request) -> web.Response:
        if not _from_here(request):
            return self._page(403, "Not done", "<p>This was not sent from a page of this server.</p>")
        one, form = await self._found(request), await request.post()
        if one is None:
            return await self._change(request)
        who, does, text = (str(form.get(name, "")) for name in ("who", "does", "text"))
        return self._done(one.path, await self._does(one, who, does, text))

    async def _does(self, one: PageChange, who: str, does: str, text: str) -> str:
        """Return why the action failed; empty if it succeeded."""
        if who not in self.actions.people():
            return "There is no person with that name."
        try:
            if does == "approve":
                await self.actions.approve(one.path, who)
            elif text.strip():
                await self.actions.comment(one.path, who, text)
            else:
                return "A comment needs some text."
        except self.actions.refused as refused:
            return str(refused) or "The forge does not do that."
        return ""

    async def _propose(self, request: web.Request) -> web.Response:
        if not _from_here(request):
            return self._page(403, "Not done", "<p>This was not sent from a page of this server.</p>")
        form = {name: str(value) for name, value in (await request.post()).items()}
        branch, who, title = form.get("branch", ""), form.get("who", ""), form.get("title", "").strip()
        if branch not in self.actions.branches() or who not in self.actions.people() or not title:
            return self._done("", "A change needs a branch that has none yet, somebody, and a title.")
        try:
            return self._done(await self.actions.propose(branch, who, title, form.get("text", "")), "")
        except self.actions.refused as refused:
            return self._done("", str(refused) or "The forge does not do that.")

    def _done(self, path: str, why_not: str) -> web.Response:
        if why_not:
            return self._page(422, "Not done", f"<p>{escape(why_not)}</p>")
        # 303 makes the browser fetch the page again, so that reloading it does not send the form again.
        return web.Response(status=303, headers={"Location": quote(path, safe="/+")})

    # --- what they see

    def _page(self, status: int, title: str, body: str) -> web.Response:
        kind, forge, home = (escape(text) for text in (self.actions.kind, self.actions.forge, f"{self.actions.root}/"))
        note = f"A {kind} on this machine: these are not {forge}'s own pages. <a href='{home}'>All changes</a>"
        text = (
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
            "<meta name='viewport' content='width=device-width'>"
            f"<style>{_STYLE}</style><body><header>{note}</header><main>{body}</main></body></html>"
        )
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        return web.Response(status=status, text=text, content_type="text/html", headers=headers)

    def _listed(self, every: Sequence[PageChange]) -> str:
        rows = "".join(
            f"<tr><td>{_word(one.state)}<td><a href='{escape(quote(one.path, safe='/+'))}'>{escape(one.name)}</a>"
            f"<td><bdi>{escape(one.title)}</bdi><td class='of'>{escape(one.author)}"
            f"<td>{'<br>'.join(f'{escape(mark.name)} {_word(mark.state)}' for mark in one.marks)}"
            for one in every
        )
        return f"<h1>Changes</h1><table>{rows or '<tr><td>None yet.'}</table>{self._proposing()}"

    def _proposing(self) -> str:
        branches = self.actions.branches()
        if not branches:
            return f"<p class='of'>{escape(self.actions.hint)}</p>"
        return (
            "<h2>Open a change</h2><form method='post'>"
            f"<label>of the branch {_choice('branch', branches)}</label> "
            f"<label>as {_choice('who', self.actions.people())}</label>"
            "<p><label>Title <input name='title' required maxlength='255'></label></p>"
            "<p><label>Text <textarea name='text' rows='3'></textarea></label></p>"
            "<button>Open</button></form>"
        )

    def _shown(self, one: PageChange) -> str:
        labels = " ".join(f"<span class='label'>{escape(label)}</span>" for label in one.labels)
        marks = "".join(_marked(mark) for mark in one.marks)
        remarks = "".join(_remarked(remark) for remark in sorted(one.remarks, key=lambda remark: remark.at_s))
        text = f"<article><div class='text' dir='auto'>{_written(one.text)}</div></article>" if one.text else ""
        return (
            f"<h1><bdi>{escape(one.title)}</bdi> <span class='of'>{escape(one.name)}</span></h1>"
            f"<p>{_word(one.state)} <span class='of'>{escape(one.author)} wants to merge "
            f"<code>{escape(one.source)}</code> into <code>{escape(one.target)}</code></span> {labels}</p>{text}"
            f"<h2>Checks</h2><table id='checks'>{marks or '<tr><td>None yet.'}</table>"
            f"<h2>Comments</h2><div id='said'>{remarks or 'Nothing yet.'}</div>"
            f"{_acting(self.actions.people())}"
        )


def _from_here(request: web.Request) -> bool:
    """Say whether a form of ours sent it, and not a page of somebody else in the same browser."""
    origin = request.headers.get("Origin", "")
    # The second condition stops DNS rebinding: there, a foreign
    # name resolves to this machine, and origin and host agree.
    return origin == f"http://{request.host}" and urlsplit(origin).hostname in _LOOPBACK


def _word(state: str) -> str:
    looks = (("good", _GOOD), ("bad", _BAD), ("open", _OPEN))
    look = next((name for name, words in looks if state in words), "")
    return f"<span class='word {look}'>{escape(state)}</span>" if look else escape(state)


def _choice(name: str, among: Sequence[str]) -> str:
    return f"<select name='{name}'>{''.join(f'<option>{escape(one)}</option>' for one in among)}</select>"


def _acting(people: Sequence[str]) -> str:
    if not people:
        return ""
    return (
        f"<form method='post'><label>As {_choice('who', people)}</label>"
        "<p><textarea name='text' rows='2' aria-label='Comment'></textarea></p>"
        "<button name='does' value='comment'>Comment</button> "
        "<button name='does' value='approve'>Approve</button></form>"
    )


def _marked(one: ChangeMark) -> str:
    name = escape(one.name)
    # Programs name these addresses; `javascript:` must not become a link.
    if one.url.startswith(("http://", "https://")):
        name = f"<a href='{escape(one.url)}' rel='noreferrer'>{name}</a>"
    lines = "".join(f"<br><code>{escape(line)}</code>" for line in one.lines)
    return f"<tr><td>{name}<td>{_word(one.state)}<td>{escape(one.text)}{lines}"


def _remarked(one: PageRemark) -> str:
    at = datetime.fromtimestamp(one.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    text = f"<div class='text' dir='auto'>{_written(one.text)}</div>" if one.text else ""
    return f"<article><p><b>{escape(one.who)}</b> {_word(one.did)} <span class='of'>{at}</span></p>{text}</article>"


def _written(text: str) -> str:
    """Return a comment as HTML: its URLs become links, and what is between pairs of stars is strong."""
    safe = escape(_HIDDEN.sub("", text).strip())
    linked = _URL.sub(lambda found: f"<a href='{found[0]}' rel='noreferrer'>{found[0]}</a>", safe)
    return _STRONG.sub(r"<strong>\1</strong>", linked)

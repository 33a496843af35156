"""Define review remarks on changes, signed so that nobody can write one in another person's name."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

TEXT_MAX_CHARS = 10_000
PATH_MAX_CHARS = 4_096
SIDES = ("old", "new")
WORDS = ("approved", "withdrawn")


class Speaker(NamedTuple):
    """Describe how people approve changes of one connection on the pages."""

    auth: str
    """The section [auth NAME] whose user names are the git server's; empty: nobody can write remarks."""
    bound: bool
    """Whether the git server checks that the author named in a note is the account that pushes it."""


class ReviewRemark(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Represent one line of a note in `refs/notes/headgate-review`."""

    id: str
    change: str
    """Key of the change; the remark is valid for this change only."""
    commit: str
    who: str
    realm: str = ""
    """The section [auth NAME] that authenticated the author."""
    at_ms: int = 0
    text: str = ""
    file: str = ""
    """Path of the file; empty: the remark concerns the whole change."""
    side: str = ""
    """old | new"""
    line: int = 0
    """Number of the line; 0: the remark concerns the whole file."""
    reply: str = ""
    """The id of the remark that this one replies to."""
    resolved: bool | None = None
    """Whether a reply marks the remark it replies to as resolved or as open; None: it changes nothing."""
    word: str = ""
    """approved | withdrawn: the effect on the approval of this commit; empty: none."""
    sig: str = ""
    """HMAC-SHA-256 of all other fields, in hexadecimal digits."""


def signed(secret: bytes, remark: ReviewRemark) -> ReviewRemark:
    """Return the remark with the signature of the fleet."""
    return replace(remark, sig=_signature(secret, remark))


def _signature(secret: bytes, remark: ReviewRemark) -> str:
    # Fields are encoded in the order of their declaration, so every process computes the same signature.
    return hmac.new(secret, msgspec.json.encode(replace(remark, sig="")), hashlib.sha256).hexdigest()


class ShownRemark(msgspec.Struct, frozen=True, kw_only=True):
    """Represent a remark as the API returns it."""

    id: str
    who: str
    verified: bool
    """Whether this installation wrote it for the person it names; otherwise anybody with push access to the notes may
    have written it."""
    commit: str
    at: int
    """Milliseconds since the epoch."""
    text: str
    file: str
    side: str
    line: int
    reply: str
    resolved: bool | None
    word: str


def read(secret: bytes, change: str, commit: str, lines: Iterable[str]) -> tuple[list[ShownRemark], int]:
    """Return the remarks in the lines of a note on a commit of a change, oldest first, and the number of other lines.

    If lines have the same id, the signed one counts.
    """
    found, odd = dict[str, ShownRemark](), 0
    for text in lines:
        try:
            one = msgspec.json.decode(text, type=ReviewRemark)
        # Anybody with push access to the notes can write anything there: malformed lines are counted and skipped.
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            odd += 1
            continue
        if (one.change, one.commit) != (change, commit) or not one.id or not _fits(one):
            odd += 1
            continue
        remark = _shown(one, verified=hmac.compare_digest(one.sig.encode(), _signature(secret, one).encode()))
        # A copy of a remark with its id and without its signature must not hide the signed one.
        known = found.get(one.id)
        if known is None or (remark.verified and not known.verified):
            found[one.id] = remark
    return sorted(found.values(), key=lambda one: (one.at, one.id)), odd


def _fits(one: ReviewRemark) -> bool:
    sizes = len(one.text) <= TEXT_MAX_CHARS and len(one.file) <= PATH_MAX_CHARS and len(one.who) <= 255
    words = one.side in ("", *SIDES) and one.word in ("", *WORDS)
    return sizes and words and 0 <= one.line < 2**31 and 0 <= one.at_ms < 2**53


def _shown(one: ReviewRemark, *, verified: bool) -> ShownRemark:
    return ShownRemark(
        id=one.id,
        who=one.who,
        verified=verified,
        commit=one.commit,
        at=one.at_ms,
        text=one.text,
        file=one.file,
        side=one.side,
        line=one.line,
        reply=one.reply,
        resolved=one.resolved,
        # An unsigned line may contain any text, but must never count as somebody's approval.
        word=one.word if verified else "",
    )

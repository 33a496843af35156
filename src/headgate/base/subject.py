"""Record what the running code is concerned with, so that every line it logs can say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_SUBJECT: ContextVar[Mapping[str, str]] = ContextVar("subject", default={})  # noqa: B039 - never changed in place


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Add to what log lines name: tenant, pipeline, change, item, buildset, job, build. Tasks started inside inherit
    it."""
    token = _SUBJECT.set({**_SUBJECT.get(), **{name: value for name, value in names.items() if value}})
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def subject() -> Mapping[str, str]:
    return _SUBJECT.get()

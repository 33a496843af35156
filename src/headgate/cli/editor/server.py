"""Speak the language server protocol over standard input and output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec

from headgate import __version__
from headgate.cli.editor.session import EditorSession, Location, Problem

PAUSE_S = 0.2
"""Pause in typing, in seconds, after which a file is checked."""
_SEVERITIES = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}


class Editor:
    """Serve one editor."""

    def __init__(self, session: EditorSession, failure: str) -> None:
        self._session, self._failure = session, failure
        self.server = LanguageServer("headgate", __version__)
        self._typed: dict[str, int] = {}
        self._shown: dict[Path, set[Path]] = {}
        """Checked file -> the files for which that check published problems."""
        answers: dict[str, Callable[..., Any]] = {  # each takes the parameters of its request
            types.INITIALIZED: self._begin,
            types.TEXT_DOCUMENT_DID_OPEN: self._opened,
            types.TEXT_DOCUMENT_DID_CHANGE: self._changed,
            types.TEXT_DOCUMENT_DID_SAVE: self._saved,
            types.TEXT_DOCUMENT_DID_CLOSE: self._closed,
            types.TEXT_DOCUMENT_HOVER: self._hover,
            types.TEXT_DOCUMENT_DEFINITION: self._definition,
        }
        for name, answer in answers.items():
            # The library sets attributes on the function, which a bound method would reject.
            self.server.feature(name)(partial(answer))

    def _begin(self, _: types.InitializedParams) -> None:
        if self._failure:
            text = f"{self._failure}\nHeadgate checks only the syntax of files."
            message = types.ShowMessageParams(type=types.MessageType.Warning, message=text)
            self.server.window_show_message(message)

    # --- diagnostics

    async def _opened(self, params: types.DidOpenTextDocumentParams) -> None:
        await self._look(params.text_document.uri, everything=False)

    async def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        # Each keystroke starts a wait, and only the wait of the last one finds its number still current.
        uri = params.text_document.uri
        turn = self._typed[uri] = self._typed.get(uri, 0) + 1
        await asyncio.sleep(PAUSE_S)
        if self._typed.get(uri) == turn:
            await self._look(uri, everything=False)

    async def _saved(self, params: types.DidSaveTextDocumentParams) -> None:
        await self._look(params.text_document.uri, everything=True)

    async def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        """Discard unsaved text."""
        self._typed.pop(params.text_document.uri, None)
        await self._look(params.text_document.uri, everything=False)

    async def _look(self, uri: str, *, everything: bool) -> None:
        """Publish problems immediately, and again after the affected job graphs have been frozen."""
        path = _path(uri)
        if path is None:
            return
        document = self.server.workspace.text_documents.get(uri)
        # Take the text from the editor, not from the event: further changes may have arrived in the meantime.
        self._session.write(path, document.source if document is not None else None)
        # Checking the syntax takes milliseconds; freezing graphs takes longer, so its problems follow later.
        self._tell(path)
        frozen = 0
        for _ in self._session.refresh(self._session.file(path), everything=everything):
            frozen += 1
            await asyncio.sleep(0)  # answer requests that arrive in the meantime
        if frozen:
            self._tell(path)

    def _tell(self, path: Path) -> None:
        problems = self._session.problems(path)
        # An editor shows diagnostics until it receives new ones, so publish an empty list for files without problems.
        for gone in self._shown.get(path, set()) - set(problems):
            problems[gone] = []
        self._shown[path] = {where for where, found in problems.items() if found}
        for where, found in problems.items():
            diagnostics = [self._diagnostic(where, one) for one in found]
            uri = from_fs_path(str(where)) or ""
            self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics))

    def _diagnostic(self, path: Path, one: Problem) -> types.Diagnostic:
        extent, lines = one.extent, self._lines(path)
        # The protocol counts from 0 and, with most editors, in UTF-16 units.
        start = self._codec.position_to_client_units(lines, types.Position(extent.line - 1, extent.column - 1))
        end = self._codec.position_to_client_units(lines, types.Position(extent.end_line - 1, extent.end_column - 1))
        text = f"{one.error.text}\nbecause of {one.because}" if one.because else one.error.text
        severity = _SEVERITIES[one.error.severity]
        return types.Diagnostic(types.Range(start, end), text, severity, one.error.name, source="headgate")

    # --- hovers and definitions

    def _hover(self, params: types.HoverParams) -> types.Hover | None:
        path, line, column = self._place(params)
        text = self._session.hover(path, line, column) if path is not None else ""
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text)) if text else None

    def _definition(self, params: types.DefinitionParams) -> list[types.Location]:
        path, line, column = self._place(params)
        found = self._session.definition(path, line, column) if path is not None else []
        return [_location(one) for one in found]

    def _place(self, params: types.HoverParams | types.DefinitionParams) -> tuple[Path | None, int, int]:
        """Return file, line and column (from 1, in characters) in the text on the screen, even if it has not been
        checked yet."""
        path = _path(params.text_document.uri)
        lines = self._lines(path) if path is not None else []
        # Hovers must match the text on the screen, even if the pause after typing is not over yet.
        if path is not None and params.text_document.uri in self.server.workspace.text_documents:
            self._session.write(path, "".join(lines))
        at = self._codec.position_from_client_units(lines, params.position)
        return path, at.line + 1, at.character + 1

    @property
    def _codec(self) -> PositionCodec:
        return self.server.workspace.position_codec

    def _lines(self, path: Path) -> list[str]:
        """Return the lines of a file from the editor, or else from the disk."""
        document = self.server.workspace.text_documents.get(from_fs_path(str(path)) or "")
        if document is not None:
            return list(document.lines)
        return path.read_text(errors="replace").splitlines(keepends=True) if path.is_file() else []


def _path(uri: str) -> Path | None:
    """Return the path of the file, or None if the URI is not that of a file."""
    found = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(found) if found else None


def _location(one: Location) -> types.Location:
    start = types.Position(one.line - 1, 0)
    return types.Location(from_fs_path(str(one.path)) or "", types.Range(start, start))

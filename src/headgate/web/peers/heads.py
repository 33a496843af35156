"""HEAD, answered by every server as GET without its body."""

from __future__ import annotations

from headgate.web.peers.requests import App, Message, Receive, Send


class HeadApplication:
    """Wrap an application that answers GET. A HEAD request ends once the head is sent."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer HEAD as GET; pass on everything else."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def waited() -> Message:
            # Streams wait for the client to leave; told so at once, an endless one ends after its head.
            return {"type": "http.disconnect"} if answered else await receive()

        async def bare(message: Message) -> None:
            nonlocal answered
            if answered:
                return
            answered = message["type"] == "http.response.body"
            await send({**message, "body": b"", "more_body": False} if answered else message)

        await self._app({**scope, "method": "GET"}, waited, bare)

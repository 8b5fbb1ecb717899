"""Push answer for any ASGI app: `WallePush` adds it to the responses to requests that carry a profile."""

import logging
from collections.abc import Callable

from walle.base.asgi import ANSWERED, ASGIApp, Message, Receive, Scope, Send
from walle.deploy.push.answerer import Answerer, error_header
from walle.deploy.push.directive_texts import Headers
from walle.errors import DeployError
from walle.protocol import DEVICE_HEADER, HAVE_HEADER, PROFILE_HEADER

type IdentifyDevice = Callable[[bytes | None], str]
"""`identify(X-Walle-Device)` returns the id of the device whose session this is, or raises a DeployError."""

_LOG = logging.getLogger(__name__)
_PROFILE = PROFILE_HEADER.lower().encode()
_DEVICE = DEVICE_HEADER.lower().encode()
_HAVE = HAVE_HEADER.lower().encode()


class WallePush:
    """ASGI middleware: any app's responses carry the push answer to requests that carry a profile.

    It only adds headers to the start of a response: bodies still stream, websockets and lifespan pass through, and an
    invalid profile, or one without the session of its device, does not change the app's answer. Paths that begin with
    `except_under` get none: who asks there sends a profile for another purpose. Nor do requests that have it already
    (ANSWERED in the scope).
    """

    def __init__(
        self, app: ASGIApp, answerer: Answerer, identify: IdentifyDevice, *, except_under: str | None = None
    ) -> None:
        self.app = app
        self.answerer = answerer
        self.identify = identify
        self._except_under = except_under

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extra = self._extra(scope) if scope["type"] == "http" and not scope.get(ANSWERED) else ()
        if not extra:
            await self.app(scope, receive, send)
            return

        async def send_with_answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self.app(scope, receive, send_with_answer)

    def _extra(self, scope: Scope) -> Headers:
        profile = session = have = None
        for name, value in scope["headers"]:
            if name == _PROFILE:
                profile = value
            elif name == _DEVICE:
                session = value
            elif name == _HAVE:
                have = value
        if profile is None or (self._except_under is not None and scope["path"].startswith(self._except_under)):
            return ()
        try:
            return self.answerer.headers(profile, self.identify(session), have) + self.answerer.stamp
        except DeployError as error:
            return error_header(str(error))
        except Exception:  # noqa: BLE001 - an error here must not fail the business request
            _LOG.exception("a profile could not be answered")
            return error_header("the profile could not be answered")

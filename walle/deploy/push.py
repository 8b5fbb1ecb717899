"""The push middleware under its public name: `WallePush` adds the push answer (§6) to any ASGI app."""

from walle.deploy.cloud.push import Answerer, WallePush

__all__ = ["Answerer", "WallePush"]

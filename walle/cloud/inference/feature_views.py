"""Views of uploaded features, which phases in the cloud read by `ctx.features`."""

import contextlib
from typing import Any

from walle.pipeline.features.topics import check_readable
from walle.pipeline.ingest.store.feature_view import FeatureView, FeatureViewError, ViewConfig
from walle.pipeline.ingest.stores import open_uploads
from walle.protocol import Manifest
from walle.store.background import in_background


class FeatureViews:
    """The views of a cloud, kept up to date between `start` and `close`: the latest feature of each key."""

    def __init__(self) -> None:
        self.views: dict[str, FeatureView] = {}
        self._undo = contextlib.AsyncExitStack()

    async def start(self, texts: tuple[str, ...], location: str) -> None:
        """Follow the stored uploads at `location`; raises as `ViewConfig.parse` and `open_uploads`."""
        configs = [ViewConfig.parse(text) for text in texts]
        if not configs:
            return
        async with contextlib.AsyncExitStack() as undo:
            uploads = await undo.enter_async_context(open_uploads(location, create=True))
            for config in configs:
                view = self.views[config.name] = FeatureView(config, uploads)
                await undo.enter_async_context(in_background(f"feature view {config.name}", view.run, uploads.clock))
            self._undo = undo.pop_all()

    async def close(self) -> None:
        await self._undo.aclose()

    def latest(self, manifest: Manifest, name: str, key: dict[str, Any]) -> Any:
        """Return the latest feature of a key in a view of the task's scenario, if the task may read its topic."""
        scenario = manifest.scenario
        view = self.views.get(f"{scenario}/{name}")
        if view is None:
            known = ", ".join(sorted(each.partition("/")[2] for each in self.views if each.startswith(f"{scenario}/")))
            raise FeatureViewError(f"feature view {name!r} is unknown; {scenario!r} has {known or 'none'}")
        check_readable(manifest.name, manifest.readable_topics, view.config.topic)
        return view.latest(key)

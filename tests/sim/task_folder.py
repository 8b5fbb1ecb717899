"""A task version laid out in a folder as a device has it, and an event and a trigger for its runs."""

from pathlib import Path

from tests.sim.tasks import task_version
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest
from walle.task.format.bundle import build_bundle, unpack
from walle.trust.signing import Signer

CONFIG = b'[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n'
EVENT = Event("page_exit", "item/1", 5, {"n": 1})
TRIGGER = Trigger(EVENT, 7, (Event("page_enter", "item/1", 4, {}), EVENT), (EVENT,))


def laid_out(folder: Path, main: str, config: bytes = CONFIG, **files: bytes) -> tuple[Path, Manifest]:
    """Lay out the bundle of a version; `slow__walle` is the file resources/slow.walle."""
    resources = {f"resources/{name.replace('__', '.')}": data for name, data in files.items()}
    entries = "".join(f'"{path}" = "shared"\n' for path in resources)
    config += f"[files]\n{entries}".encode() if resources else b""
    tree = {"main.py": main.encode(), "task.toml": config, **resources}
    bundle = build_bundle(task_version(tree), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder)
    return folder, bundle.manifest

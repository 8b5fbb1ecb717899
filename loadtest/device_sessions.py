"""Session tokens of devices that are not enrolled. Not for locust's process, in which walle.cloud stops gevent."""

import time
from collections.abc import Iterable
from pathlib import Path

from walle.access.identity.sessions import SessionSigner
from walle.base.device_identity import DeviceIdentity
from walle.cloud import CloudHome

_LIFE_S = 3600.0


def device_sessions(folder: Path, device_ids: Iterable[str]) -> list[str]:
    """Return a token for each device, signed with the key of the cloud in `folder`."""
    signer = SessionSigner(CloudHome(folder).identity_folder)
    expires_s = time.time() + _LIFE_S
    return [signer.sign(DeviceIdentity(device_id, 1), expires_s) for device_id in device_ids]

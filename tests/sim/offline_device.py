"""The configuration of a device whose cloud cannot be reached."""

from pathlib import Path
from typing import Any

from walle.device import DeviceConfig

NO_CLOUD: dict[str, Any] = {"cloud_url": "http://127.0.0.1:9", "tunnel_host": "127.0.0.1", "tunnel_port": 9}


def offline_config(folder: Path, **options: Any) -> DeviceConfig:
    """Return the configuration of device d0 in `folder`."""
    return DeviceConfig(
        device_id="d0",
        folder=folder,
        app_version="1.0",
        attributes={},
        ca_pem="",
        trusted_keys={},
        **NO_CLOUD,
        **options,
    )

"""A device's identity, folder and cloud."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.pipeline.events.live_source import LivePolicy
from walle.protocol import Attribute


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """A device's identity, folder, and cloud. `folder` holds its whole state; one process may use it at a time."""

    device_id: str
    folder: Path
    app_version: str
    attributes: Mapping[str, Attribute]
    cloud_url: str  # address of the gateway, for pulls and outcomes
    tunnel_host: str
    tunnel_port: int
    ca_pem: str  # certificate authority of the cloud's servers
    trusted_keys: Mapping[str, Any]  # root metadata of the fleet: which keys this device trusts
    max_version_bytes: int = 300_000_000  # size of all files of a task's version; §2.2 has this for a whole app
    vms: int = 8  # task VMs at once; with more tasks, each switch costs a few milliseconds of reset and loading
    # Task VMs live in a child process without the device's files, keys and connections, one for all devices of a
    # process (docs/vm.md). False is for a program that may not start one: a task that breaks out of Python then has all
    # that the device has.
    vm_host: bool = True
    report_interval_s: float = 10.0
    exclusive_interval_s: float = 60.0  # interval of questions for exclusive files, by a device whose tasks have some
    enrolment_token: str = ""  # token of a join file; a device that is enrolled needs none
    escalation_timeout_s: float = 5.0
    escalation_connect_s: float = 0.5  # share for a connection: without one, a task soon decides by itself
    live: LivePolicy = dataclasses.field(default_factory=LivePolicy)  # for events without a position
    journal_sync_s: float = 1.0  # seconds of live events that a power cut may lose; 0: `on_event` waits for the disk

    @property
    def as_seen_by_tasks(self) -> Mapping[str, Attribute]:
        """The device as a task sees it in a phase that runs here (`ctx.device`)."""
        return {"app_version": self.app_version, **self.attributes, "id": self.device_id}

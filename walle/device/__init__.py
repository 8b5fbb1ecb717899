"""One device as one asyncio program: agent, trigger trie, task VMs, feature store and tunnel client.

The app around it does three things: it passes the user's events to `on_event`, adds `request_headers()` to its ordinary
HTTP requests, and passes the answer's header to `handle_answer`. `walle device run` is such an app.

    async with Device(config) as device:
        await device.on_event(Event("page_enter", "item/7", ts_ms, {}))

After a crash a new `Device` on the same folder continues: it replays the events from its own journal, and nothing is
produced twice (ARCHITECTURE.md). An app that can send its events again, as from a log file, passes
their positions instead, replays them from `device.resume_from`, and the device keeps no journal.

`device.py` connects the parts, each with one noun: `event_intake.py`, `task_versions.py`, `task_runs.py`,
`cloud_requests.py`, `cloud_tunnel.py`, `credentials.py`.
"""

from walle.device.config import DeviceConfig
from walle.device.device import Device
from walle.device.summary import DeviceCounts, DeviceSummary

__all__ = ["Device", "DeviceConfig", "DeviceCounts", "DeviceSummary"]

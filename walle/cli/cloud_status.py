"""`walle cloud status`: nodes, processes, leases and lag of a cloud that runs."""

import asyncio
from typing import Any

from walle.cli.credentials import TokenOption, UrlOption, ca_of
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.deploy.status_client import StatusClient
from walle.errors import ConfigError


def status(url: UrlOption = "", token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Show a cloud's nodes and processes, their restarts, who holds the leases, and how far each part is behind.

    The token needs the role reader on `*`.
    """
    if not url:
        raise ConfigError("give the cloud's address as --url or WALLE_URL")

    async def ask() -> dict[str, Any]:
        async with StatusClient(url, token, ca_pem=ca_of(url)) as client:
            return await client.status()

    found = asyncio.run(ask())
    if as_json:
        emit(found, as_json=True)
        return
    rows = [
        {
            "process": one["name"],
            "state": one["state"],
            "node": one["node"][:12],
            "pid": one["pid"] or "",
            "up": _duration(one["up_s"]),
            "restarts": "" if one["restarts"] is None else one["restarts"],
            "address": one.get("address", ""),
            "the last ended": one["last_end"],
        }
        for one in found["processes"] or []
    ]
    reason = found.get("unknown")  # why neither nodes nor processes are
    emit_rows([{"nodes and processes": f"unknown: {reason}"}] if reason else rows, as_json=False)
    nodes = [
        {
            "node": one["id"][:12],
            "host": one["host"],
            "alive": "yes" if one["is_alive"] else "no",
            "resources": ", ".join(f"{name}={amount:g}" for name, amount in sorted(one["resources"].items())),
            "labels": ", ".join(f"{name}={value}" for name, value in sorted(one["labels"].items())),
        }
        for one in found["nodes"] or []
    ]
    if not reason:
        emit_rows(nodes, as_json=False)
    servers = [
        {
            "tunnel server": one["name"],
            "address": f"{one['host']}:{one['port']}",
            "state": one["error"] or one["state"],
            "devices": one["connections"],
            "stored": one["stored"],
            "waiting": one["queued"],
            "lag s": one["lag_s"],
        }
        for one in found.get("tunnel_servers", [])  # an older cloud has none
    ]
    if servers:
        emit_rows(servers, as_json=False)
    leases = [
        {"lease": one["name"], "holder": one["holder"], "changes of hands": one["fence"], "left s": one["left_s"]}
        for one in found["leases"]
    ]
    emit_rows(leases, as_json=False)
    emit_rows(
        [{f"lag: {name}": "unknown" if value is None else value for name, value in found["lag"].items()}], as_json=False
    )


def _duration(seconds: float) -> str:
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.0f} s"

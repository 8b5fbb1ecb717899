"""`walle cloud status`: nodes, processes, leases and lag of a cloud that runs."""

from typing import Any

from rich.markup import escape

from walle.cli.cloud_call import call_cloud
from walle.cli.credentials import TokenOption, UrlOption
from walle.cli.output import JsonFlag, emit, emit_rows
from walle.client.admin_client import AdminClient
from walle.errors import ConfigError


def status(url: UrlOption = "", token: TokenOption = "", as_json: JsonFlag = False) -> None:
    """Show a cloud's nodes and processes, their restarts, who holds the leases, and how far each part is behind.

    The token needs the role reader on `*`.
    """
    if not url:
        raise ConfigError("give the cloud's address as --url or WALLE_URL")

    found = call_cloud(AdminClient, url, token, lambda client: client.status())
    if as_json:
        emit(found, as_json=True)
        return
    rows = [
        {
            "process": one["name"],
            "state": one["state"],
            "node": one["node"][:12],
            "pid": one["pid"] or "",
            "version": one.get("version", ""),  # an older cloud has none
            "up": _duration(one["up_s"]),
            "restarts": "" if one["restarts"] is None else one["restarts"],
            "address": one.get("address", ""),
            "the last ended": one["last_end"],
        }
        for one in found["processes"] or []
    ]
    reason = found.get("unknown")  # why neither nodes nor processes are
    emit_rows([{"nodes and processes": f"unknown: {reason}"}] if reason else rows, as_json=False)
    if len(found.get("versions", [])) > 1:
        emit(found, as_json=False, text=_mixed(found["processes"]))
    plan = found.get("plan") or {"drained": {}, "remaining": 0, "doing": "", "fault": ""}  # an older cloud has none
    nodes = [
        {
            "node": one["id"][:12],
            "host": one["host"],
            "alive": "yes" if one["is_alive"] else "no",
            "drained": _drained(plan["drained"].get(one["id"])),
            "resources": ", ".join(f"{name}={amount:g}" for name, amount in sorted(one["resources"].items())),
            "labels": ", ".join(f"{name}={value}" for name, value in sorted(one["labels"].items())),
        }
        for one in found["nodes"] or []
    ]
    if not reason:
        emit_rows(nodes, as_json=False)
    if plan["remaining"] or plan["fault"]:
        emit_rows([{"to do": plan["remaining"], "doing": plan["doing"], "hindered by": plan["fault"]}], as_json=False)
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
        {"lease": one["name"], "holder": one["holder"], "takeovers": one["fence"], "left s": one["left_s"]}
        for one in found["leases"] or []
    ]
    emit_rows(leases or [{"leases": "unknown"}], as_json=False)
    if database := found.get("database"):  # an older cloud has none
        state = "answers" if database["ok"] else f"away for {_duration(database['away_s'])}: {database['error']}"
        emit_rows([{"database": state, "last answer took ms": database["took_ms"]}], as_json=False)
    emit_rows(
        [{f"lag: {name}": "unknown" if value is None else value for name, value in found["lag"].items()}], as_json=False
    )


def _mixed(processes: list[dict[str, Any]]) -> str:
    """Return a line that says which processes run which version of walle."""
    names: dict[str, list[str]] = {}
    for one in processes:
        names.setdefault(one["version"] or "unknown", []).append(one["name"])
    shown = "; ".join(f"{version}: {', '.join(names[version])}" for version in sorted(names))
    return f"[yellow]versions of walle differ[/] ({escape(shown)}): walle cloud restart makes them one"


def _drained(node: dict[str, Any] | None) -> str:
    """Return what a drained node still has, "yes" if nothing; empty for a node that is not drained."""
    if node is None:
        return ""
    return f"yes, but for {', '.join(node['left'])}" if node["left"] else "yes"


def _duration(seconds: float) -> str:
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.0f} s"

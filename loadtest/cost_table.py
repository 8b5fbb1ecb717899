"""Table of the CPU time of a cloud's processes by kind of request."""

from typing import Any


def net_ms(row: dict[str, Any], idle: dict[str, Any]) -> dict[str, float]:
    """Return CPU milliseconds of each role by request, without what it spends when nothing is asked."""
    found = {}
    for role, cpu_s in row["cpu_s"].items():
        rest_s = idle["cpu_s"].get(role, 0.0) / idle["seconds"] * row["seconds"]
        found[role] = (cpu_s - rest_s) * 1000 / max(row["count"], 1)
    return found


def cost_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return CPU seconds by 1,000 requests as lines of text: milliseconds by request are the same number."""
    if not rows:
        return []
    idle, *others = rows
    roles = sorted({role for row in rows for role in row["cpu_s"]})
    lines = ["", "CPU seconds by 1,000 requests, without what is spent when idle; idle: CPU seconds by 1,000 s"]
    lines.append(f"{'':50s}{'count':>8s}" + "".join(f"{role[:18]:>19s}" for role in roles))
    for row in others:
        cost = net_ms(row, idle)
        lines.append(f"{row['kind']:50s}{row['count']:8d}" + "".join(f"{cost.get(role, 0):19.2f}" for role in roles))
    idle_ms = {role: cpu_s / idle["seconds"] * 1000 for role, cpu_s in idle["cpu_s"].items()}
    lines.append(f"{'idle':58s}" + "".join(f"{idle_ms.get(role, 0):19.2f}" for role in roles))
    return lines

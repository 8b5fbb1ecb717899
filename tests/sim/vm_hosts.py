"""Tasks for tests of VM hosts, and what is seen of a host's process from outside."""

import asyncio
import contextlib
import opcode
import os
import time
from pathlib import Path

from tests.sim.vm_task import DEEP_SLEEP

HONEST = DEEP_SLEEP + "\ndef add(a, b): return a + b\ndef wait(seconds): sleep(seconds); return seconds\n"

# Bytecode that loads a constant 16 GB behind the function's constants, where no memory is.
_FAR = bytes(part for byte in (0x7F, 0xFF, 0xFF) for part in (opcode.opmap["EXTENDED_ARG"], byte))
_WILD = _FAR + bytes([opcode.opmap["LOAD_CONST"], 0xFF, opcode.opmap["RETURN_VALUE"], 0])
CRASHES = f"""
def run():
    type(run)(run.__code__.replace(co_code={_WILD!r}), {{}})()
"""


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def inspect(pid: int) -> tuple[bytes, str, list[str]]:
    """Return the environment, the folder and the descriptors of a process."""
    process = Path(f"/proc/{pid}")
    descriptors = [str(link.readlink()) for link in (process / "fd").iterdir()]
    return (process / "environ").read_bytes(), str((process / "cwd").readlink()), descriptors


async def wait_until_gone(pid: int, timeout_s: float = 10.0) -> None:
    until = time.monotonic() + timeout_s
    while is_running(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        await asyncio.sleep(0.01)


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def host_processes() -> list[int]:
    """Return the processes of VM hosts that this process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if (
                fields[1] == str(os.getpid())
                and fields[0] != "Z"
                and b"HostServer" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
    return found

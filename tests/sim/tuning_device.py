"""A device as a process that tunes its model by its peers': `python -m tests.sim.tuning_device CONFIG SEED`.

CONFIG is a pickled `DeviceConfig`. It waits for a peer, takes two rounds, and prints how many peers each had.
"""

import asyncio
import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.adapt.tuning.points import QUICK, dense, samples
from walle.adapt.tuning.distillation import Statistics, Tuner, model_file
from walle.adapt.tuning.hints import Hints
from walle.device import Device, DeviceConfig

TASK = "shop/count"
_TRIES, _PAUSE_S = 1200, 0.05


async def main(config: DeviceConfig, seed: int) -> None:
    tuner = Tuner(dense(seed, 8 + 4 * seed), samples(24, seed), QUICK)
    before = tuner.model.hidden.weight.data.tobytes()
    counts: list[int] = []
    async with Device(config) as device:
        models = device.peer_models
        await models.share(TASK, model_file(tuner.model, tuner.data), Hints(), loss=1.0, accuracy=0.0)
        for _ in range(_TRIES):
            if await models.peers(TASK, 1):
                break
            await asyncio.sleep(_PAUSE_S)
        exchange = models.exchange(TASK, Hints(), 4)

        def counted(file: bytes, statistics: Statistics) -> Sequence[bytes]:
            found = exchange(file, statistics)
            counts.append(len(found))
            return found

        await asyncio.to_thread(tuner.run, counted, rounds=2)
    sys.stdout.write(json.dumps({"peers": counts, "changed": tuner.model.hidden.weight.data.tobytes() != before}))


if __name__ == "__main__":
    asyncio.run(main(pickle.loads(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])))

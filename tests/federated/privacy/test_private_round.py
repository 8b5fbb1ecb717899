"""A private round: clipped updates with discrete noise under secure aggregation, and modules that a device loads."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.federated.privacy.secagg.rounds import Exchange, names, plain_sum
from walle import np
from walle.federated.privacy.clipping import clip_update, l2_norm
from walle.federated.privacy.fixed_point import FixedPoint, range_for
from walle.federated.privacy.noise import DiscreteGaussianNoise
from walle.federated.privacy.secagg.plan import SecAggPlan

MULTIPLIER, MAX_NORM, MINIMUM = 0.9, 2.0, 7


def update_of(numbers: random.Random, scale: float) -> dict[str, Any]:
    weights = [numbers.gauss(0, scale) for _ in range(3000)]
    return {"w": np.asarray(weights, "float32").reshape((30, 100)), "b": np.asarray(weights[:10], "float32")}


def test_the_sum_of_a_private_round_is_that_of_clipped_updates_and_the_whole_noise() -> None:
    devices, numbers = names(10), random.Random(1)
    live = devices[3:]  # number of the minimum: the parts of their noise add up to the whole
    limit = range_for(MAX_NORM, MULTIPLIER * MAX_NORM / math.sqrt(MINIMUM))
    coding = FixedPoint({"w": (30, 100), "b": (10,)}, limit, 20, 10)
    clipped, vectors = {}, {}
    for device in devices:
        clipped[device] = clip_update(update_of(numbers, 0.1), MAX_NORM)
        noise = DiscreteGaussianNoise(
            MULTIPLIER, coding.norm_bound(MAX_NORM), clients=MINIMUM, random_bytes=numbers.randbytes
        )
        encoded = coding.encode(clipped[device].arrays, noise)
        assert encoded.limited_values == 0
        vectors[device] = encoded.vector
    exchange = Exchange(SecAggPlan("private round", coding.values, MINIMUM), devices)
    found = coding.decode(exchange.unmask(live, exchange.mask(live, exchange.share(devices), vectors)).total)
    without = {name: plain_sum([clipped[one].arrays[name] for one in live]) for name in coding.shapes}
    assert all(l2_norm(clipped[one].arrays) <= MAX_NORM < clipped[one].norm_before for one in live)
    errors = [value for name in coding.shapes for value in (found[name] - without[name]).reshape(-1).tolist()]
    deviation = math.sqrt(sum(value * value for value in errors) / len(errors))
    assert deviation == pytest.approx(MULTIPLIER * MAX_NORM, rel=0.06)


def test_a_device_loads_neither_the_server_nor_the_accountant() -> None:
    code = """
import sys
from walle.federated.privacy import clipping, fixed_point, noise
from walle.federated.privacy.secagg import client
print("\\n".join(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "walle.federated.privacy.secagg.client" in loaded
    unwanted = {
        "numpy",
        "scipy",
        "dp_accounting",
        "walle.federated.privacy.budget",
        "walle.federated.privacy.secagg.server",
    }
    assert not loaded & unwanted

"""Inputs, made by seed, with which the engine's outputs of the app's own models are compared with PyTorch's."""

import numpy as np
from numpy.typing import NDArray

SIDE = 320
WINDOW, WINDOWS = 512, 40
EVERY = 7  # cell of a detector is compared


def image(seed: int = 5) -> NDArray[np.float32]:
    """Return blocks of colours at two sizes, float32 [1, 3, 320, 320], -1 to 1."""
    rng = np.random.default_rng(seed)
    coarse, fine = (np.kron(rng.uniform(-0.5, 0.5, (3, n, n)), np.ones((SIDE // n, SIDE // n))) for n in (5, 40))
    return (coarse + fine)[None].astype(np.float32)


def samples(seed: int = 5) -> NDArray[np.float32]:
    """Return tones that come and go in noise, float32 [512 * 40]."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(WINDOWS * WINDOW) / 16_000
    tones = sum(np.sin(2 * np.pi * 140 * k * time_s) / k for k in range(1, 20)) * (np.sin(9 * time_s) > 0)
    made: NDArray[np.float32] = (0.1 * tones + 0.01 * rng.normal(size=len(time_s))).astype(np.float32)
    return made

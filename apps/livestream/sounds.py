"""Synthetic sounds: a voice that babbles, and music. For the demo's own clip and the training of its voice detector.

Sounds are float32 [n] at 16 kHz, about -1 to 1; the same generator's seed gives the same sound.
"""

import numpy as np
from numpy.typing import NDArray

type Samples = NDArray[np.float32]

RATE = 16_000
# Resonances of vowels in Hz (Peterson and Barney, 1952, men's means).
_VOWELS = (
    (270, 2290, 3010), (390, 1990, 2550), (530, 1840, 2480), (660, 1720, 2410), (730, 1090, 2440),
    (570, 840, 2410), (440, 1020, 2240), (300, 870, 2240), (640, 1190, 2390), (490, 1350, 1690),
)  # fmt: skip
_BANDWIDTHS = (70, 100, 140)


def babble(seconds: float, rng: np.random.Generator) -> Samples:
    """Return syllables without meaning: pulses of a voice through a vowel's resonances, hisses and pauses."""
    total = round(seconds * RATE)
    out = np.zeros(total + RATE, np.float32)
    base, tract = rng.uniform(85, 240), rng.uniform(0.9, 1.2)  # Hz; a shorter tract has higher resonances
    at, left = round(rng.uniform(0, 0.1) * RATE), int(rng.integers(3, 9))
    while at < total:
        length = round(rng.uniform(0.1, 0.28) * RATE)
        if rng.random() < 0.45:
            hiss = _hiss(round(rng.uniform(0.04, 0.11) * RATE), rng)
            out[at : at + len(hiss)] += hiss
            at += round(len(hiss) * 0.8)
        part = _syllable(length, base * rng.uniform(0.85, 1.2), tract, rng)
        out[at : at + length] += part
        at += round(length * rng.uniform(0.8, 1.05))
        left -= 1
        if left == 0:  # a pause between phrases
            at += round(rng.uniform(0.15, 0.5) * RATE)
            left = int(rng.integers(4, 12))
    out = out[:total]
    return (0.5 * out / max(float(np.abs(out).max()), 1e-6)).astype(np.float32)


def _syllable(length: int, pitch: float, tract: float, rng: np.random.Generator) -> Samples:
    time = np.linspace(0, 1, length)
    frequency = pitch * (
        1 + rng.uniform(-0.15, 0.15) * (time - 0.5) + 0.01 * np.cumsum(rng.normal(size=length)) / length**0.5
    )
    cycles = np.cumsum(frequency / RATE)
    phase = cycles % 1
    pulses = np.where(phase < 0.6, np.sin(np.pi * phase / 0.6) ** 2, 0) + rng.normal(0, 0.02, length)
    spectrum = np.fft.rfft(np.diff(pulses, prepend=0), 2 * length)
    hertz = np.fft.rfftfreq(2 * length, 1 / RATE)
    starts, ends = (_VOWELS[int(rng.integers(len(_VOWELS)))] for _ in range(2))
    voiced = [np.fft.irfft(spectrum * _resonances(hertz, vowel, tract))[:length] for vowel in (starts, ends)]
    mixed = voiced[0] * (1 - time) + voiced[1] * time
    envelope = np.minimum(1, np.minimum(time / 0.15, (1 - time) / 0.3))
    made: Samples = (mixed * envelope / (np.abs(mixed).max() + 1e-9) * rng.uniform(0.5, 1)).astype(np.float32)
    return made


def _resonances(hertz: NDArray[np.float64], vowel: tuple[int, ...], tract: float) -> NDArray[np.complex128]:
    gain = np.ones(len(hertz), np.complex128)
    for frequency, bandwidth in zip(vowel, _BANDWIDTHS, strict=True):
        centre = frequency * tract
        gain *= centre**2 / (centre**2 - hertz**2 + 1j * hertz * bandwidth)
    return gain


def _hiss(length: int, rng: np.random.Generator) -> Samples:
    spectrum = np.fft.rfft(rng.normal(size=length))
    hertz = np.fft.rfftfreq(length, 1 / RATE)
    made = np.fft.irfft(spectrum * np.exp(-(((hertz - rng.uniform(3000, 6500)) / 1500) ** 2)), length)
    shaped: Samples = (rng.uniform(0.1, 0.3) * made / (np.abs(made).max() + 1e-9) * np.hanning(length)).astype(
        np.float32
    )
    return shaped


def music(seconds: float, rng: np.random.Generator) -> Samples:
    """Return notes of a plucked or blown instrument in a scale, with a beat."""
    total = round(seconds * RATE)
    out = np.zeros(total + 4 * RATE, np.float32)
    root, beat = rng.uniform(110, 330), rng.uniform(0.18, 0.6)
    scale = (0, 2, 4, 7, 9, 12, 14, 16)
    harmonics, decay = int(rng.integers(1, 9)), rng.uniform(0.1, 1.2)
    has_drums, is_blown = rng.random() < 0.5, rng.random() < 0.3
    for number in range(int(seconds / beat) + 1):
        at = round(number * beat * RATE)
        for _ in range(int(rng.integers(1, 4))):
            hertz = root * 2 ** (scale[int(rng.integers(len(scale)))] / 12)
            time = np.arange(round(min(3 * decay, 2.5) * RATE)) / RATE
            note = sum(
                rng.uniform(0.3, 1) / k * np.sin(2 * np.pi * k * hertz * time)
                for k in range(1, harmonics + 1)
                if k * hertz < 7500
            )
            shape = (
                np.minimum(1, time / 0.05) * np.clip((time[-1] - time) / 0.1, 0, 1)
                if is_blown
                else np.exp(-time / decay)
            )
            out[at : at + len(time)] += (note * shape * np.minimum(1, time / 0.004)).astype(np.float32)
        if has_drums and number % 2 == 0:
            time = np.arange(3200) / RATE
            out[at : at + 3200] += (2 * rng.normal(size=3200) * np.exp(-time / 0.03)).astype(np.float32)
    out = out[:total]
    return (0.5 * out / max(float(np.abs(out).max()), 1e-6)).astype(np.float32)

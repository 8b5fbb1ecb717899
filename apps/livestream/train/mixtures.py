"""Mixtures of voices and noises with labels of speech by window: what the voice detector learns from, and is tested on.

Sounds are at 16 kHz; a window has 512 samples.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apps.livestream.own_models import RATE, WINDOW

type Array = NDArray[np.float32]

_VOICES = {"real": 0.55, "espeak": 0.3, "babble": 0.15}  # kind of voice: its share of the mixtures
_ROOM = 8000  # samples of a room's response


class Mixtures:
    """Batches of random mixtures of the sounds in a pack of make_data.py.

    `held_out` has samples and labels of the sounds that no mixture has, by name. Equal generators give equal batches.
    """

    def __init__(self, folder: Path, random: np.random.Generator) -> None:
        self._random = random
        self.held_out: dict[str, tuple[Array, Array]] = {}
        samples, speech, kinds = list[Array](), list[Array](), list[str]()
        with np.load(folder / "sounds.npz") as pack:
            for name in sorted({name.rsplit("/", 1)[0] for name in pack.files}):
                wave, labels = pack[f"{name}/samples"] / np.float32(32768), pack[f"{name}/speech"].astype(np.float32)
                if name.startswith("held_out/"):
                    self.held_out[name] = wave, labels
                    continue
                count = min(len(wave) // WINDOW, len(labels))
                samples.append(wave[: count * WINDOW])
                speech.append(labels[:count])
                kinds.append("noise" if labels.max() < 0.5 else name.split("/")[0])
        self._samples, self._speech = np.concatenate(samples), np.concatenate(speech)
        self._lengths = np.array([len(wave) for wave in samples])
        self._starts = np.cumsum(self._lengths) - self._lengths
        shares = {kind: self._lengths * (np.array(kinds) == kind) / RATE for kind in {*kinds}}  # seconds of each sound
        self.seconds = {kind: float(share.sum()) for kind, share in shares.items()}
        voices = np.zeros(len(kinds))
        for kind, share in _VOICES.items():
            if kind in shares:
                of_kind = shares[kind] if kind == "real" else (shares[kind] > 0).astype(np.float64)
                voices += share * of_kind / of_kind.sum()
        self._voices = voices / voices.sum()
        noises = (shares["noise"] > 0) / (shares["noise"] > 0).sum() + shares["noise"] / shares["noise"].sum()
        self._noises = noises / noises.sum()

    def batch(self, count: int, windows: int) -> tuple[Array, Array]:
        """Return samples [count, 512 windows] and the probability of speech in each window, [count, windows]."""
        wave, labels = self._parts(self._voices, count, windows)
        place = np.arange(windows)
        start, stop = self._uniform(0, windows, 2, count, 1)
        pause = self._chosen(0.4, count)[:, None] & (place > start) & (place < stop)
        gate = np.where(pause | self._chosen(0.2, count)[:, None], np.float32(0), np.float32(1))
        wave, labels = wave * np.repeat(gate, WINDOW, 1), labels * gate
        rows = self._chosen(0.35, count)
        wave[rows] = self._in_a_room(wave[rows])
        loud = np.sqrt((wave**2).sum(1) / ((np.abs(wave) > 1e-3).sum(1) + 1))
        wave *= (0.1 / np.maximum(loud, 1e-3))[:, None]
        noise, _ = self._parts(self._noises, count, windows)
        rows = self._chosen(0.55, count)
        noise[rows] = self._made_noise(int(rows.sum()), windows * WINDOW)
        noise *= (0.1 / np.maximum(np.sqrt((noise**2).mean(1)), 1e-4))[:, None]
        ratio = 10 ** (-self._uniform(-3, 35, count, 1) / 20) * ~self._chosen(0.08, count)[:, None]
        mixed = self._coloured(wave + noise * ratio)
        mixed *= 10 ** (self._uniform(-30, 8, count, 1) / 20)
        mixed += 10 ** self._uniform(-5, -3, count, 1) * self._normal(*mixed.shape)
        return np.clip(mixed, -1, 1), labels

    def _uniform(self, low: float, high: float, *shape: int) -> Array:
        return self._random.uniform(low, high, shape).astype(np.float32)

    def _normal(self, *shape: int) -> Array:
        return self._random.standard_normal(shape, np.float32)

    def _chosen(self, share: float, count: int) -> NDArray[np.bool_]:
        return self._random.random(count) < share

    def _curve(self, low: float, high: float, count: int, points: int, length: int) -> Array:
        """Return lines through random points, [count, length]."""
        at = (np.arange(length) + 0.5) * points / length - 0.5
        rows = self._uniform(low, high, count, points)
        return np.stack([np.interp(at, np.arange(points), row) for row in rows]).astype(np.float32)

    def _parts(self, weights: NDArray[np.float64], count: int, windows: int) -> tuple[Array, Array]:
        """Return parts of sounds at other speeds, with the labels of their windows."""
        chosen = self._random.choice(len(weights), count, p=weights)
        size, start = self._lengths[chosen][:, None], self._starts[chosen][:, None]
        speed = np.exp(self._random.uniform(-0.22, 0.22, (count, 1)))
        at = self._random.uniform(0, 1, (count, 1)) * size + np.arange(windows * WINDOW) * speed
        first = at.astype(np.int64)
        share = (at - first).astype(np.float32)
        first %= size
        wave = self._samples[start + first] * (1 - share) + self._samples[start + (first + 1) % size] * share
        return wave, self._speech[(start + first[:, WINDOW // 2 :: WINDOW]) // WINDOW]

    def _made_noise(self, count: int, length: int) -> Array:
        """Return noise of random colour that comes and goes, with hum, tones or clicks."""
        if not count:
            return np.zeros((0, length), np.float32)
        spectrum = np.fft.rfft(self._normal(count, length))
        hertz = np.maximum(np.linspace(0, 1, spectrum.shape[1], dtype=np.float32), 1e-3)
        noise = np.fft.irfft(spectrum * hertz ** -self._uniform(0, 1.2, count, 1), length)
        noise /= noise.std(1, keepdims=True)
        swing = self._curve(0.05, 1, count, 40, length)
        noise = np.where(self._chosen(0.5, count)[:, None], noise * swing**2, noise)
        tone = np.zeros_like(noise)
        base = np.exp(self._uniform(math.log(50), math.log(2500), count, 1))
        phase = 2 * math.pi * base * np.arange(length, dtype=np.float32) / RATE
        for k in range(1, 6):
            tone += self._uniform(0, 1, count, 1) / k * np.sin(k * phase) * (base * k < 7500)
        tone *= np.where(self._chosen(0.5, count)[:, None], swing, 1)
        clicks = 12 * (self._random.random((count, length), np.float32) < 0.0004)
        kind = self._uniform(0, 1, count, 1)
        choices = [noise, tone + 0.05 * noise, clicks + 0.1 * noise]
        made: Array = np.select([kind < 0.5, kind < 0.75, kind < 0.85], choices, noise + tone).astype(np.float32)
        return made

    def _in_a_room(self, wave: Array) -> Array:
        """Return the sounds with the echo of a room each."""
        count, length = wave.shape
        time_s = np.arange(_ROOM, dtype=np.float32) / RATE
        response = self._normal(count, _ROOM) * np.exp(-time_s / self._uniform(0.02, 0.15, count, 1))
        response *= self._uniform(0.2, 1, count, 1) / np.sqrt((response**2).sum(1, keepdims=True))
        response[:, 0] += 1
        total = length + _ROOM
        heard: Array = np.fft.irfft(np.fft.rfft(wave, total) * np.fft.rfft(response, total), total)[:, :length]
        return heard

    def _coloured(self, wave: Array) -> Array:
        """Return the sounds as a microphone hears them that has a frequency response of its own."""
        count, length = wave.shape
        spectrum = np.fft.rfft(wave)
        hertz = np.linspace(0, RATE / 2, spectrum.shape[1])
        gain = 10 ** (self._curve(-7, 7, count, 9, spectrum.shape[1]) / 20)
        highest = np.where(self._chosen(0.25, count)[:, None], self._uniform(3300, 5000, count, 1), 9000)
        lowest = np.where(self._chosen(0.5, count)[:, None], self._uniform(0, 250, count, 1), 0)
        heard: Array = np.fft.irfft(spectrum * gain * ((hertz < highest) & (hertz > lowest)), length).astype(np.float32)
        return heard

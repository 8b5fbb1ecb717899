"""Inputs for models, made from the images and recordings beside the checkout."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

DATA = Path(__file__).parents[2].parent / "shared/data"


def picture(name: str, height: int, width: int, *, channels: str = "RGB") -> Any:
    """Return an image as float32 (3, height, width), 0 to 255, in the given order of channels."""
    with Image.open(DATA / "images" / name) as image:
        pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    return np.ascontiguousarray((pixels[..., ::-1] if channels == "BGR" else pixels).transpose(2, 0, 1))


def grey(name: str, height: int, width: int) -> Any:
    """Return an image as float32 (height, width), 0 to 255."""
    with Image.open(DATA / "images" / name) as image:
        return np.asarray(image.convert("L").resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)


def sound(name: str) -> tuple[Any, int]:
    """Return the first channel of a PCM16 recording as float32 in [-1, 1), and its rate in Hz."""
    with wave.open(str(DATA / "audio" / name)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return samples[:: file.getnchannels()].astype(np.float32) / 32768, file.getframerate()


def spectra(samples: Any, size: int, hop: int) -> Any:
    """Return the complex spectra (frames, size // 2 + 1) of Hann-windowed pieces."""
    starts = range(0, len(samples) - size + 1, hop)
    pieces = np.stack([samples[start : start + size] for start in starts])
    return np.fft.rfft(pieces * np.hanning(size + 1)[:-1], axis=1)


def log_mel(samples: Any, rate: int, *, size: int, hop: int, bands: int) -> Any:
    """Return 20 log10 of the mel spectrum, float32 (frames, bands)."""

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    edges = 700 * (10 ** (np.linspace(0, mel(rate / 2), bands + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(size, 1 / rate)
    rise = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
    weights = np.clip(np.minimum(rise, fall), 0, None)
    power = np.abs(spectra(samples, size, hop)) ** 2
    return (10 * np.log10(power @ weights + 1e-10)).astype(np.float32)

"""Training and evaluation of the voice detector on mixed sounds."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apps.livestream.train.detection import Average, rate_at
from apps.livestream.train.networks import RATE, WINDOW, Voice


class Sounds:
    """Batches of mixed sounds with labels of speech by window."""

    def __init__(self, folder: Path, device: torch.device, generator: torch.Generator) -> None:
        self.device, self.rng = device, generator
        pack = np.load(folder / "sounds.npz")
        names = sorted({name.rsplit("/", 1)[0] for name in pack.files})
        self.held = {
            n: (pack[f"{n}/samples"] / np.float32(32768), pack[f"{n}/speech"].astype(np.float32))
            for n in names
            if n.startswith("held_out/")
        }
        samples, speech, starts, lengths, kinds = [], [], [], [], []
        at = 0
        for name in names:
            if name.startswith("held_out/"):
                continue
            wave, labels = pack[f"{name}/samples"].astype(np.float32) / 32768, pack[f"{name}/speech"].astype(np.float32)
            count = min(len(wave) // WINDOW, len(labels))
            samples.append(wave[: count * WINDOW])
            speech.append(labels[:count])
            starts.append(at)
            lengths.append(count * WINDOW)
            at += count * WINDOW
            group = name.split("/")[0]
            kinds.append("noise" if labels.max() < 0.5 else group)
        self.samples = torch.as_tensor(np.concatenate(samples), device=device)
        self.speech = torch.as_tensor(np.concatenate(speech), device=device)
        self.starts, self.lengths = torch.as_tensor(starts, device=device), torch.as_tensor(lengths, device=device)
        by_kind = {kind: [n for n, k in enumerate(kinds) if k == kind] for kind in set(kinds)}
        print(
            "sounds:",
            {kind: (len(members), round(sum(lengths[n] for n in members) / RATE)) for kind, members in by_kind.items()},
        )
        voices = torch.zeros(len(kinds))
        for kind, share in (("real", 0.55), ("espeak", 0.3), ("babble", 0.15)):
            for n in by_kind.get(kind, []):
                voices[n] = (
                    share / len(by_kind[kind])
                    if kind != "real"
                    else share * lengths[n] / sum(lengths[m] for m in by_kind[kind])
                )
        noises = torch.zeros(len(kinds))
        for n in by_kind["noise"]:
            noises[n] = 1 / len(by_kind["noise"]) + lengths[n] / sum(lengths[m] for m in by_kind["noise"])
        self.voices, self.noises = voices.to(device), noises.to(device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.rng, device=self.device)

    def _taken(self, weights: Tensor, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Return parts of sounds at other speeds, with the labels of their windows."""
        chosen = torch.multinomial(weights, count, True, generator=self.rng)
        speed = torch.exp(self.uniform(-0.22, 0.22, count))
        size = self.lengths[chosen]
        at = (self.uniform(0, 1, count) * size)[:, None] + torch.arange(length, device=self.device)[None] * speed[
            :, None
        ]
        whole = at.floor()
        share = at - whole
        first = whole.long() % size[:, None]
        second = (first + 1) % size[:, None]
        start = self.starts[chosen][:, None]
        wave = self.samples[start + first] * (1 - share) + self.samples[start + second] * share
        middle = first[:, WINDOW // 2 :: WINDOW]
        return wave, self.speech[(start + middle) // WINDOW]

    def batch(self, count: int, windows: int) -> tuple[Tensor, Tensor]:
        """Return samples [count, 512 windows] and labels [count, windows]."""
        length = windows * WINDOW
        wave, labels = self._taken(self.voices, count, length)
        gate = torch.ones(count, windows, device=self.device)
        place = torch.arange(windows, device=self.device)[None]
        start, stop = self.uniform(0, windows, count)[:, None], self.uniform(0, windows, count)[:, None]
        gate = torch.where((self.uniform(0, 1, count) < 0.4)[:, None] & (place > start) & (place < stop), 0.0, gate)
        gate = gate * (self.uniform(0, 1, count) > 0.2)[:, None]
        smooth = gate.repeat_interleave(WINDOW, 1)
        wave = wave * smooth
        labels = labels * gate
        wave = torch.where((self.uniform(0, 1, count) < 0.35)[:, None], self._in_a_room(wave), wave)
        loud = ((wave**2).sum(1) / ((wave.abs() > 1e-3).sum(1) + 1)).sqrt().clamp(min=1e-3)
        wave = wave / loud[:, None] * 0.1
        noise, _ = self._taken(self.noises, count, length)
        kind = self.uniform(0, 1, count)
        noise = torch.where((kind < 0.45)[:, None], noise, self._made_noise(count, length))
        noise = noise / (noise**2).mean(1, keepdim=True).sqrt().clamp(min=1e-4) * 0.1
        ratio = 10 ** (-self.uniform(-3, 35, count) / 20)
        ratio = ratio * (self.uniform(0, 1, count) > 0.08)
        mixed = wave + noise * ratio[:, None]
        mixed = self._coloured(mixed)
        mixed = mixed * (10 ** (self.uniform(-30, 8, count) / 20))[:, None]
        mixed = mixed + 10 ** self.uniform(-5, -3, count)[:, None] * torch.randn(
            mixed.shape, generator=self.rng, device=self.device
        )
        return mixed.clamp(-1, 1), labels

    def _made_noise(self, count: int, length: int) -> Tensor:
        """Return noise of random colour that comes and goes, with hum, tones or clicks."""
        noise = torch.randn((count, length), generator=self.rng, device=self.device)
        spectrum = torch.fft.rfft(noise)
        hertz = torch.linspace(0, 1, spectrum.shape[1], device=self.device)[None].clamp(min=1e-3)
        noise = torch.fft.irfft(spectrum * hertz ** (-self.uniform(0, 1.2, count)[:, None]), length)
        noise = noise / noise.std(1, keepdim=True)
        swing = F.interpolate(self.uniform(0.05, 1, count, 1, 40), length, mode="linear")[:, 0]
        noise = torch.where((self.uniform(0, 1, count) < 0.5)[:, None], noise * swing**2, noise)
        time_s = torch.arange(length, device=self.device)[None] / RATE
        tone = torch.zeros_like(noise)
        base = torch.exp(self.uniform(math.log(50), math.log(2500), count))[:, None]
        for k in range(1, 6):
            tone = tone + self.uniform(0, 1, count)[:, None] / k * torch.sin(
                2 * math.pi * base * k * time_s * (base * k < 7500)
            )
        tone = tone * torch.where((self.uniform(0, 1, count) < 0.5)[:, None], swing, torch.ones_like(swing))
        click = (torch.rand((count, length), generator=self.rng, device=self.device) < 0.0004).float() * 12
        kind = self.uniform(0, 1, count)[:, None]
        return torch.where(
            kind < 0.5,
            noise,
            torch.where(kind < 0.75, tone + 0.05 * noise, torch.where(kind < 0.85, click + 0.1 * noise, noise + tone)),
        )

    def _in_a_room(self, wave: Tensor) -> Tensor:
        count, length = wave.shape
        size = 8000
        decay = self.uniform(0.02, 0.15, count)[:, None]
        time_s = torch.arange(size, device=self.device)[None] / RATE
        response = torch.randn((count, size), generator=self.rng, device=self.device) * torch.exp(-time_s / decay)
        response = response / (response**2).sum(1, keepdim=True).sqrt() * self.uniform(0.2, 1, count)[:, None]
        response[:, 0] += 1
        total = length + size
        return torch.fft.irfft(torch.fft.rfft(wave, total) * torch.fft.rfft(response, total), total)[:, :length]

    def _coloured(self, wave: Tensor) -> Tensor:
        count, length = wave.shape
        spectrum = torch.fft.rfft(wave)
        curve = F.interpolate(self.uniform(-7, 7, count, 1, 9), spectrum.shape[1], mode="linear")[:, 0]
        hertz = torch.linspace(0, RATE / 2, spectrum.shape[1], device=self.device)[None]
        highest = torch.where(
            self.uniform(0, 1, count) < 0.25,
            self.uniform(3300, 5000, count),
            torch.full((count,), 9000.0, device=self.device),
        )
        lowest = self.uniform(0, 250, count) * (self.uniform(0, 1, count) < 0.5)
        gain = 10 ** (curve / 20) * (hertz < highest[:, None]) * (hertz > lowest[:, None])
        return torch.fft.irfft(spectrum * gain, length)


def train_voice(
    sounds: Sounds, seconds: float, batch: int, windows: int, device: torch.device, start_folder: Path | None
) -> Voice:
    """Train the voice detector for a time."""
    network = Voice()
    network.to(device)
    if start_folder:
        w = np.load(start_folder / "voice.npz")
        network.load_state_dict({name: torch.as_tensor(w[name], dtype=torch.float32) for name in w.files})
    average = Average(network, 0.998)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-3)
    start, step, shown = time.monotonic(), 0, 0.0
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(done, 2e-3 if start_folder else 6e-3)
        with torch.no_grad():
            wave, labels = sounds.batch(batch, windows)
        logits, _ = network(wave)
        weight = torch.where((labels > 0.25) & (labels < 0.75), 0.2, 1.0)
        loss = (weight * F.binary_cross_entropy_with_logits(logits, (labels > 0.5).float(), reduction="none"))[
            :, 3:
        ].mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        average.update()
        step += 1
        if done >= shown:
            shown = done + 0.1
            print(f"voice {done:4.0%} step {step} loss {loss.item():.3f}", flush=True)
    average.use()
    print(f"voice: {step} steps of {batch}")
    network.eval()
    return network


@torch.no_grad()
def evaluate_voice(sounds: Sounds, network: Voice, device: torch.device) -> dict[str, Any]:
    """Return, for each held-out sound, shares of windows: told as labelled, speech that is found, false speech."""
    rows = {}
    for name, (wave, labels) in sounds.held.items():
        count = min(len(wave) // WINDOW, len(labels))
        logits, _ = network(torch.as_tensor(wave[: count * WINDOW], device=device)[None])
        speech, truth = (logits[0] > 0).cpu().numpy(), labels[:count] > 0.5
        clear = (labels[:count] < 0.25) | (labels[:count] > 0.75)
        rows[name] = {
            "windows": count,
            "agreement": float((speech == truth)[clear].mean()),
            "speech found": float(speech[truth & clear].mean()) if (truth & clear).any() else None,
            "false speech": float(speech[~truth & clear].mean()) if (~truth & clear).any() else None,
        }
    return rows

"""Networks of the app's own models in PyTorch: an anchor-free detector and a voice detector.

own_models.py builds the same as graphs of the engine, by the names of the weights here. speech.py trains the voice
detector with walle.nn; the one here is what reference.py compares the engine with.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

STRIDES = (8, 16, 32)
ITEM_WIDTHS = (24, 48, 96, 160, 192)
FACE_WIDTHS = (16, 32, 48, 80, 96)
RATE, WINDOW, CONTEXT = 16_000, 512, 256
FFT, BANDS, LOW_HZ, HIGH_HZ = 512, 24, 80.0, 7600.0
INNER, UNITS = 24, 36


class ConvNorm(nn.Module):
    """Convolution, batch normalisation and ReLU."""

    def __init__(
        self, inputs: int, results: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, results, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(results, momentum=0.03)
        self.relu = relu
        self.bias: Any = None  # bias of folded weights that were just loaded

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return self._calibrated(x)
        x = self.norm(self.conv(x))
        return F.relu(x) if self.relu else x

    @torch.no_grad()
    def _calibrated(self, x: Tensor) -> Tensor:
        """Set the normalisation from this input, so that it undoes itself and adds the bias of the folded weights."""
        x = self.conv(x)
        variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        self.norm.running_mean.copy_(mean)
        self.norm.running_var.copy_(variance)
        self.norm.weight.copy_(torch.sqrt(variance + self.norm.eps))
        self.norm.bias.copy_(mean + self.bias)
        x = x + self.bias[:, None, None]
        self.bias = None
        return F.relu(x) if self.relu else x

    def folded(self) -> tuple[Tensor, Tensor]:
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        return self.conv.weight * scale[:, None, None, None], self.norm.bias - self.norm.running_mean * scale


class Separable(nn.Module):
    """A depthwise convolution and one of 1 x 1 (MobileNet v1)."""

    def __init__(self, inputs: int, results: int, stride: int = 1, kernel: int = 3) -> None:
        super().__init__()
        self.depth = ConvNorm(inputs, inputs, kernel, stride, inputs)
        self.point = ConvNorm(inputs, results, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(self.depth(x))


class Detector(nn.Module):
    """An anchor-free detector: MobileNet-like features of strides 8, 16 and 32, joined from the top, and heads.

    Takes BGR [n, 3, 320, 320], value / 127.5 - 1. Gives logits [n, 2100, classes] and the distances [n, 2100, 4] of the
    left, top, right and bottom sides from the cell's centre, in pixels.
    """

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        a, b, c, d, e = widths
        self.stem = ConvNorm(3, a, 3, 2)
        self.s4 = nn.ModuleList([Separable(a, b, 2), Separable(b, b)])
        self.s8 = nn.ModuleList([Separable(b, c, 2), Separable(c, c)])
        self.s16 = nn.ModuleList([Separable(c, d, 2), Separable(d, d), Separable(d, d)])
        self.s32 = nn.ModuleList([Separable(d, e, 2), Separable(e, e, 1, 5)])
        self.lateral = nn.ModuleList([ConvNorm(width, c, 1) for width in (c, d, e)])
        self.head = nn.ModuleList([nn.ModuleList([Separable(c, c, 1, 5), Separable(c, c, 1, 5)]) for _ in STRIDES])
        self.out = nn.ModuleList([nn.Conv2d(c, classes + 4, 1) for _ in STRIDES])
        for out in self.out:
            nn.init.normal_(out.weight, std=0.01)
            with torch.no_grad():
                out.bias[:classes] = -4.0
                out.bias[classes:] = 0.8
        self.classes = classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        levels = []
        for stage in (self.s4, self.s8, self.s16, self.s32):
            for block in stage:
                x = block(x)
            levels.append(x)
        p8, p16, p32 = (lateral(level) for lateral, level in zip(self.lateral, levels[1:], strict=False))
        p16 = p16 + F.interpolate(p32, scale_factor=2.0, mode="nearest")
        p8 = p8 + F.interpolate(p16, scale_factor=2.0, mode="nearest")
        rows = []
        for level, (x, stride) in enumerate(zip((p8, p16, p32), STRIDES, strict=False)):
            for block in self.head[level]:
                x = block(x)
            y = self.out[level](x).float().flatten(2).transpose(1, 2)
            distances = torch.exp(y[..., self.classes :].clamp(-4, 4)) * stride
            rows.append((y[..., : self.classes], distances))
        return torch.cat([r[0] for r in rows], 1), torch.cat([r[1] for r in rows], 1)

    @torch.no_grad()
    def start_from(self, w: Mapping[str, NDArray[np.float32]], x: Tensor) -> None:
        """Take folded weights, and the statistics of normalisation from pictures `x`."""
        device = x.device
        for name, module in self.named_modules():
            if isinstance(module, ConvNorm):
                module.conv.weight.copy_(torch.as_tensor(w[f"{name}.w"], dtype=torch.float32))
                module.bias = torch.as_tensor(w[f"{name}.b"], dtype=torch.float32, device=device)
        for level, out in enumerate(self.out):
            out.weight.copy_(torch.as_tensor(w[f"out.{level}.w"], dtype=torch.float32))
            out.bias.copy_(torch.as_tensor(w[f"out.{level}.b"], dtype=torch.float32))
        self(x)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for name, module in self.named_modules():
            if isinstance(module, ConvNorm):
                found[f"{name}.w"], found[f"{name}.b"] = (t.detach().float().cpu().numpy() for t in module.folded())
        for level, out in enumerate(self.out):
            found[f"out.{level}.w"] = out.weight.detach().float().cpu().numpy()
            found[f"out.{level}.b"] = out.bias.detach().float().cpu().numpy()
        return found


def mel_matrix() -> NDArray[np.float32]:
    """Return the bands of mel, float32 [257, 24]: triangles whose sum over the frequencies is 1."""

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)

    edges = 700 * (10 ** (np.linspace(mel(LOW_HZ), mel(HIGH_HZ), BANDS + 2) / 2595) - 1)
    hertz = np.linspace(0, RATE / 2, FFT // 2 + 1)
    bands = [
        np.clip(np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)), 0, None)
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False)
    ]
    return np.stack([band / max(band.sum(), 1e-9) for band in bands], 1).astype(np.float32)


class Voice(nn.Module):
    """A GRU over two log-mel frames a window of 512 samples: the logit of speech for each window."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * BANDS, INNER)
        self.gru = nn.GRU(INNER, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, 1)
        self.register_buffer("mel", torch.from_numpy(mel_matrix()), persistent=False)
        self.register_buffer("hann", torch.hann_window(FFT, periodic=True), persistent=False)

    def features(self, samples: Tensor) -> Tensor:
        """Return [n, windows, 48] of samples [n, 512 windows]; before the first sample is silence."""
        frames = F.pad(samples, (CONTEXT, 0)).unfold(1, FFT, CONTEXT)
        frames = frames[:, : 2 * (samples.shape[1] // WINDOW)]
        power = torch.fft.rfft(frames * self.hann).abs() ** 2
        logs = torch.log(power @ self.mel + 1e-5)
        return (0.25 * logs + 1.0).reshape(samples.shape[0], -1, 2 * BANDS)

    def forward(self, samples: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            x = self.features(samples)
        y, state = self.gru(F.relu(self.inner(x)), state)
        return self.out(y)[..., 0], state

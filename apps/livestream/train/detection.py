"""Training and evaluation of the detectors of items and of faces."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apps.livestream.train.networks import FACE_WIDTHS, ITEM_WIDTHS, STRIDES, Detector
from apps.livestream.train.rates import rate_at
from apps.livestream.train.scenes import CLASSES, FACE, SIDE, Scenes

LEVEL_SIDES = ((0, 72), (48, 144), (104, 10_000))  # longer side, in pixels, of the boxes that a level learns


class Cells:
    """The cells of all levels: centres [2100, 2], stride and range of box sides of each."""

    def __init__(self, device: torch.device) -> None:
        centres, strides, sides = [], [], []
        for stride, bounds in zip(STRIDES, LEVEL_SIDES, strict=False):
            axis = (torch.arange(SIDE // stride) + 0.5) * stride
            y, x = torch.meshgrid(axis, axis, indexing="ij")
            centres.append(torch.stack([x, y], -1).reshape(-1, 2))
            strides.append(torch.full((len(centres[-1]),), float(stride)))
            sides.append(torch.tensor([bounds], dtype=torch.float32).expand(len(centres[-1]), 2))
        self.centres, self.strides, self.sides = (torch.cat(part).to(device) for part in (centres, strides, sides))


def boxes_at(cells: Cells, distances: Tensor) -> Tensor:
    """Return left, top, right, bottom."""
    x, y = cells.centres[:, 0], cells.centres[:, 1]
    left, top, right, bottom = distances.unbind(-1)
    return torch.stack([x - left, y - top, x + right, y + bottom], -1)


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection over union of boxes, and the generalised one (Rezatofighi et al., 2019)."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inside
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = (high - low).prod(-1).clamp(min=1e-6)
    iou = inside / union.clamp(min=1e-6)
    return iou, iou - (hull - union) / hull


def detector_loss(cells: Cells, logits: Tensor, distances: Tensor, boxes: Tensor) -> Tensor:
    """Quality focal loss of the classes and generalised-IoU loss of the boxes (Li et al., 2020)."""
    corner0, corner1 = boxes[..., 1:3], boxes[..., 3:5]
    centre, size = (corner0 + corner1) / 2, corner1 - corner0
    offset = (cells.centres[None, :, None] - centre[:, None]).abs()  # [n, cells, boxes, 2]
    near = (offset < 1.5 * cells.strides[None, :, None, None]).all(-1)
    within = (offset < torch.maximum(size[:, None] / 2, 0.6 * cells.strides[None, :, None, None])).all(-1)
    longer = size.amax(-1)[:, None]
    right_level = (longer >= cells.sides[None, :, 0, None]) & (longer < cells.sides[None, :, 1, None])
    candidate = near & within & right_level & (boxes[:, None, :, 5] == 1)
    area = size.prod(-1)[:, None].expand(candidate.shape)
    best = torch.where(candidate, area, torch.full_like(area, 1e9)).argmin(-1)
    positive = candidate.any(-1)
    aim = boxes.gather(1, best[..., None].expand(-1, -1, 6))
    iou, generalised = overlaps(boxes_at(cells, distances), aim[..., 1:5])
    count = positive.sum().clamp(min=1)
    target = torch.zeros_like(logits)
    quality = iou.detach().clamp(min=0.15)
    target.scatter_(
        -1, aim[..., :1].long().clamp(0, logits.shape[-1] - 1), torch.where(positive, quality, 0.0)[..., None]
    )
    ignored = ((offset < size[:, None] / 2).all(-1) & (boxes[:, None, :, 5] == 2)).any(-1) & ~positive
    plain = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    focal = plain * (logits.sigmoid() - target).abs() ** 2
    scores = (focal * (~ignored)[..., None]).sum() / count
    sides = ((1 - generalised) * positive).sum() / count
    return scores + 1.5 * sides


class Average:
    """A moving average of a network's weights, which is what is exported."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay = network, decay
        self.values = {name: value.detach().clone() for name, value in network.state_dict().items()}
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        keep = min(self.decay, self.steps / (self.steps + 20))
        current = self.network.state_dict()
        floats = [name for name, value in current.items() if value.dtype.is_floating_point]
        torch._foreach_lerp_([self.values[name] for name in floats], [current[name] for name in floats], 1 - keep)

    def use(self) -> None:
        self.network.load_state_dict(self.values)


def train_detectors(
    scenes: Scenes, seconds: float, batch: int, device: torch.device, start_folder: Path | None
) -> dict[str, Detector]:
    """Train both detectors on the same pictures for a time."""
    networks = {"item": Detector(ITEM_WIDTHS, len(CLASSES)), "face": Detector(FACE_WIDTHS, 1)}
    for network in networks.values():
        network.to(device, memory_format=torch.channels_last).train()
    if start_folder:
        x = scenes.batch(batch)[0] / 127.5 - 1
        for name, network in networks.items():
            network.start_from(np.load(start_folder / f"{name}.npz"), x)
    averages = [Average(network, 0.998) for network in networks.values()]
    parameters = [p for network in networks.values() for p in network.parameters()]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.03},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0},
        ],
        lr=1e-3,
        fused=device.type == "cuda",
    )
    cells = Cells(device)
    start, step, shown = time.monotonic(), 0, 0.0
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(done, 2e-3 if start_folder else 3e-3)
        with torch.no_grad():
            image, items, faces = scenes.batch(batch)
            x = (image / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        total = torch.zeros((), device=device)
        losses = {}
        for (name, network), boxes in zip(networks.items(), (items, faces), strict=False):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits, distances = network(x)
            losses[name] = detector_loss(cells, logits, distances, boxes)
            total = total + losses[name]
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimiser.step()
        for average in averages:
            average.update()
        step += 1
        if done >= shown:
            shown = done + 0.05
            print(
                f"detectors {done:4.0%} step {step} " + " ".join(f"{k} {v.item():.3f}" for k, v in losses.items()),
                flush=True,
            )
    for average, network in zip(averages, networks.values(), strict=False):
        average.use()
        network.eval()
    print(f"detectors: {step} steps of {batch}")
    return networks


@torch.no_grad()
def found(
    cells: Cells, network: Detector, x: Tensor, score: float, overlap: float = 0.5
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return class, score and box of what is found in each picture, after non-maximum suppression by class."""
    results = []
    for part in x.split(64):
        logits, distances = network(part / 127.5 - 1)
        scores, boxes = logits.sigmoid().cpu(), boxes_at(cells, distances).cpu()
        for n in range(len(part)):
            best, label = scores[n].max(-1)
            order = torch.argsort(best, descending=True)[:100]
            order = order[best[order] >= score]
            kept: list[int] = []
            for k in order.tolist():
                if all(label[k] != label[j] or overlaps(boxes[n, k], boxes[n, j])[0] < overlap for j in kept):
                    kept.append(k)
            results.append((label[kept], best[kept], boxes[n][kept]))
    return results


def scored(results: list[tuple[Tensor, Tensor, Tensor]], boxes: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    """Return precision and recall of each class at an overlap of 0.5 with the labels."""
    table = boxes.cpu()
    rows = {}
    for k, name in enumerate(names):
        right = total = labelled = 0
        for (label, _, places), truth in zip(results, table, strict=False):
            sure = truth[(truth[:, 0] == k) & (truth[:, 5] == 1)]
            unsure = truth[truth[:, 5] == 2]
            labelled += len(sure)
            used: set[int] = set()
            for place in places[label == k]:
                match = [j for j in range(len(sure)) if j not in used and overlaps(place, sure[j, 1:5])[0] >= 0.5]
                if match:
                    used.add(match[0])
                    right += 1
                    total += 1
                elif not any(overlaps(place, other[1:5])[0] >= 0.4 for other in unsure):
                    total += 1
        rows[name] = {
            "precision": right / max(total, 1),
            "recall": right / max(labelled, 1),
            "found": total,
            "labelled": labelled,
        }
    return rows


def evaluate_detectors(scenes: Scenes, networks: dict[str, Detector], device: torch.device) -> dict[str, Any]:
    """Return the tables on held-out frames (the labels are other models') and on scenes of held-out drawings."""
    cells = Cells(device)
    metrics: dict[str, Any] = {}
    frames, table = scenes.held_out()
    faces = table.clone()
    faces[..., 5] = torch.where(table[..., 0] == FACE, table[..., 5], 0.0)
    faces[..., 0] = 0
    with torch.no_grad():
        image, item_boxes, face_boxes = scenes.batch(160 if device.type == "cuda" else 8, split="test", drawn_only=True)
    for threshold in (0.3, 0.4, 0.5):
        metrics[f"frames/item/{threshold}"] = scored(found(cells, networks["item"], frames, threshold), table, CLASSES)
        metrics[f"frames/face/{threshold}"] = scored(
            found(cells, networks["face"], frames, threshold), faces, ("face",)
        )
        metrics[f"drawn/item/{threshold}"] = scored(
            found(cells, networks["item"], image, threshold), item_boxes, CLASSES
        )
        metrics[f"drawn/face/{threshold}"] = scored(
            found(cells, networks["face"], image, threshold), face_boxes, ("face",)
        )
    return metrics

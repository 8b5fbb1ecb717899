"""Composed pictures for the training of the detectors: frames and drawn backgrounds with sprites on them.

Sprites are turned, scaled, coloured and covered by others, and the whole is blurred and noisy as from a camera. All is
done with tensors on the device that trains.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

CLASSES = ("person", "bottle", "cup", "cell phone", "book", "article")
FACE = len(CLASSES)
SIDE = 320
FRAME = 400
ASPECTS = ((320, 180), (320, 240), (320, 320), (180, 320), (240, 320))


class Scenes:
    """Batches of composed pictures with boxes of items and faces.

    Boxes are [batch, count, 6]: class, left, top, right, bottom, state; state 1 is a box, 2 one to be ignored, 0 none.
    """

    LAYERS = 4

    def __init__(self, folder: Path, device: torch.device, generator: torch.Generator) -> None:
        self.device, self.rng = device, generator
        pack = np.load(folder / "frames.npz")
        yuv, sizes, held = pack["yuv"], pack["sizes"], pack["held_out"]
        pictures = np.zeros((len(sizes), FRAME, FRAME, 3), np.uint8)
        at = 0
        for number, (height, width) in enumerate(sizes):
            count = height * width * 3 // 2
            pictures[number, :height, :width] = bgr(yuv[at : at + count], height, width)
            at += count
        boxes = pack["boxes"]
        most = max(int((boxes[:, 0] == n).sum()) for n in range(len(sizes)))
        table = np.zeros((len(sizes), most, 6), np.float32)
        fill = np.zeros(len(sizes), int)
        for frame, label, sure, x, y, w, h in boxes:
            n = int(frame)
            table[n, fill[n]] = (label, x, y, x + w, y + h, 1 if sure else 2)
            fill[n] += 1
        self.held = np.flatnonzero(held)
        train = np.flatnonzero(~held)
        # frames with something in them more often than those without
        weight = np.where((table[train, :, 5] == 1).any(1), 1.0, 0.6)
        self.train_frames = torch.as_tensor(train, device=device)
        self.frame_weight = torch.as_tensor(weight / weight.sum(), dtype=torch.float32, device=device)
        self.pictures = torch.as_tensor(pictures, device=device).permute(0, 3, 1, 2)
        self.sizes = torch.as_tensor(sizes, device=device)
        self.table = torch.as_tensor(table, device=device)
        pack = np.load(folder / "sprites.npz")
        self.sprites = torch.as_tensor(pack["image"], device=device).permute(0, 3, 1, 2)
        label = pack["label"]
        faces = pack["face"]
        self.face = torch.as_tensor(faces, device=device)
        self.label = torch.as_tensor(np.maximum(label, 0), device=device)  # a hand counts as a person
        usable = np.ones(len(label), bool)
        usable[len(label) - 1 :: -12] = False  # each twelfth is for the test of drawn scenes
        drawn = pack["drawn"]
        groups = {
            "hand": label == -1,
            "person": (label == 0) & drawn,
            "head": (label == 0) & ~drawn,
            "article": label >= 1,
        }
        self.groups = {
            split: {
                name: torch.as_tensor(np.flatnonzero(chosen & (usable == (split == "train"))), device=device)
                for name, chosen in groups.items()
            }
            for split in ("train", "test")
        }  # fmt: skip
        self.groups["test"]["head"] = self.groups["test"]["person"]
        classes = [np.flatnonzero(chosen_label & usable) for chosen_label in ((label == k) for k in range(1, FACE))]
        share = np.zeros(len(label), np.float32)
        for members in classes:  # every class as often, cut-outs included
            share[members] = 1 / max(len(members), 1)
        self.article_share = torch.as_tensor(share, device=device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.rng, device=self.device)

    def chance(self, share: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.rng, device=self.device) < share

    def _pick(self, split: str, name: str, count: int) -> Tensor:
        members = self.groups[split][name]
        if name == "article" and split == "train":
            return members[torch.multinomial(self.article_share[members], count, True, generator=self.rng)]
        return members[torch.randint(len(members), (count,), generator=self.rng, device=self.device)]

    def batch(self, count: int, *, split: str = "train", drawn_only: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return pictures [count, 3, 320, 320] of 0..255, boxes of items, boxes of faces."""
        aspect = torch.tensor(ASPECTS, device=self.device)[
            torch.multinomial(
                torch.tensor([0.5, 0.3, 0.08, 0.07, 0.05], device=self.device), count, True, generator=self.rng
            )
        ]
        width, height = aspect[:, 0].float(), aspect[:, 1].float()
        axis = torch.arange(SIDE, device=self.device) + 0.5
        content = ((axis[None, None, :] < width[:, None, None]) & (axis[None, :, None] < height[:, None, None]))[
            :, None
        ].float()
        image, base = self._frames(count, width, height, axis)
        is_drawn = self.chance(1.0 if drawn_only else 0.42, count)
        image = torch.where(is_drawn[:, None, None, None], self._backgrounds(count, axis), image)
        base = torch.where(is_drawn[:, None, None], torch.zeros_like(base), base)
        image, items, faces = self._paste(image, base, is_drawn, width, height, content, axis, split)
        return self._photographed(image, content), items, faces

    def _frames(self, count: int, width: Tensor, height: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
        """Return parts of real frames, mirrored or not, with the boxes in them."""
        chosen = self.train_frames[torch.multinomial(self.frame_weight, count, True, generator=self.rng)]
        rows, columns = self.sizes[chosen, 0].float(), self.sizes[chosen, 1].float()
        share = torch.where(self.chance(0.4, count), self.uniform(0.9, 1.3, count), self.uniform(0.3, 1.0, count))
        fit = torch.maximum(columns / width, rows / height)  # the whole frame is in the content at this scale
        scale = fit * share
        across, down = width * scale, height * scale
        x0 = (columns - across) * self.uniform(0, 1, count)
        y0 = (rows - down) * self.uniform(0, 1, count)
        mirrored = self.chance(0.5, count)
        xs = axis[None] * scale[:, None]
        xs = torch.where(mirrored[:, None], across[:, None] - xs, xs) + x0[:, None]
        ys = axis[None] * scale[:, None] + y0[:, None]
        xs = torch.minimum(xs.clamp(min=0.5), columns[:, None] - 0.5)
        ys = torch.minimum(ys.clamp(min=0.5), rows[:, None] - 0.5)
        grid = torch.stack(torch.broadcast_tensors(xs[:, None, :] / FRAME * 2 - 1, ys[:, :, None] / FRAME * 2 - 1), -1)
        image = F.grid_sample(self.pictures[chosen].float(), grid, align_corners=False, padding_mode="border")
        boxes = self.table[chosen].clone()
        x = (boxes[..., [1, 3]] - x0[:, None, None]) / scale[:, None, None]
        x = torch.where(mirrored[:, None, None], width[:, None, None] - x.flip(-1), x)
        y = (boxes[..., [2, 4]] - y0[:, None, None]) / scale[:, None, None]
        seen_x = torch.minimum(x.clamp(min=0), width[:, None, None])
        seen_y = torch.minimum(y.clamp(min=0), height[:, None, None])
        area = (x[..., 1] - x[..., 0]) * (y[..., 1] - y[..., 0])
        seen = (seen_x[..., 1] - seen_x[..., 0]) * (seen_y[..., 1] - seen_y[..., 0]) / area.clamp(min=1)
        state = boxes[..., 5]
        small = torch.maximum(seen_x[..., 1] - seen_x[..., 0], seen_y[..., 1] - seen_y[..., 0]) < 10
        state = torch.where((state == 1) & ((seen < 0.35) | small), 2.0, state)
        state = torch.where(seen < 0.05, 0.0, state)
        return image, torch.stack(
            [boxes[..., 0], seen_x[..., 0], seen_y[..., 0], seen_x[..., 1], seen_y[..., 1], state], -1
        )

    def _backgrounds(self, count: int, axis: Tensor) -> Tensor:
        """Return rooms of gradients, patches of noise and rectangles."""
        image = self.uniform(20, 235, count, 3, 1, 1).expand(-1, -1, SIDE, SIDE)
        for cells, strength in ((2, 90.0), (6, 50.0), (24, 25.0), (110, 14.0)):
            noise = torch.randn((count, 3, cells, cells), generator=self.rng, device=self.device)
            noise = 0.7 * noise.mean(1, keepdim=True) + 0.5 * noise
            amount = strength * self.uniform(0, 1, count, 1, 1, 1) ** 2
            image = image + amount * F.interpolate(noise, (SIDE, SIDE), mode="bilinear", align_corners=False)
        for _ in range(7):
            x, y = self.uniform(-60, 320, count), self.uniform(-60, 320, count)
            w, h = self.uniform(4, 260, count), self.uniform(4, 260, count)
            inside = (axis[None] > x[:, None]) & (axis[None] < (x + w)[:, None])
            inside = inside[:, None, :] & ((axis[None] > y[:, None]) & (axis[None] < (y + h)[:, None]))[:, :, None]
            inside = inside & self.chance(0.5, count)[:, None, None]
            shade = self.uniform(0, 1.4, count, 1, 1, 1).clamp(max=1)
            colour = self.uniform(0, 255, count, 3, 1, 1)
            image = torch.where(inside[:, None], image * (1 - shade) + colour * shade, image)
            rim = torch.minimum(w, h) * self.uniform(0.03, 0.2, count)  # a window, a picture or a screen on the wall
            inner = (axis[None] > (x + rim)[:, None]) & (axis[None] < (x + w - rim)[:, None])
            inner = (
                inner[:, None, :]
                & ((axis[None] > (y + rim)[:, None]) & (axis[None] < (y + h - rim)[:, None]))[:, :, None]
            )
            inner = inner & inside & self.chance(0.5, count)[:, None, None]
            image = torch.where(inner[:, None], self.uniform(0, 255, count, 3, 1, 1), image)
        return image

    def _paste(
        self,
        image: Tensor,
        base: Tensor,
        is_drawn: Tensor,
        width: Tensor,
        height: Tensor,
        content: Tensor,
        axis: Tensor,
        split: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(image)
        scene = self.uniform(0, 1, count)
        held = (scene < 0.4) & (is_drawn | self.chance(0.6, count))  # a presenter, an article, a hand on it
        free = (scene >= 0.4) & (is_drawn | self.chance(0.45, count))
        short = torch.minimum(width, height)
        art_x, art_y = width * self.uniform(0.1, 0.9, count), height * self.uniform(0.2, 0.85, count)
        art_size = short * torch.exp(self.uniform(math.log(0.22), math.log(0.95), count))
        alphas, records, face_records = [], [], []
        for layer in range(self.LAYERS):
            kind = ("head_or_person", "article", "hand", "article")[layer]
            if kind == "head_or_person":
                sprite = torch.where(
                    self.chance(0.6, count), self._pick(split, "person", count), self._pick(split, "head", count)
                )
                size = short * torch.exp(self.uniform(math.log(0.25), math.log(2.2), count))
                x, y = width * self.uniform(0.1, 0.9, count), height * self.uniform(0.15, 1.0, count)
                stands = self.chance(0.6, count)  # the lower edge of a bust is below the picture or at its end
                y = torch.where(stands, torch.maximum(height - size * self.uniform(0.2, 0.5, count), size * 0.3), y)
                turn = self.uniform(-0.25, 0.25, count)
                active = (held & (is_drawn | self.chance(0.4, count)) & self.chance(0.8, count)) | (
                    free & self.chance(0.45, count)
                )
            elif kind == "article":
                sprite = self._pick(split, "article", count)
                other = layer == 3
                size = short * torch.exp(self.uniform(math.log(0.12), math.log(0.9), count)) if other else art_size
                x = width * self.uniform(0, 1, count) if other else art_x
                y = height * self.uniform(0, 1, count) if other else art_y
                turn = torch.where(
                    self.chance(0.8, count), self.uniform(-0.3, 0.3, count), self.uniform(-3.1, 3.1, count)
                )
                active = (free & self.chance(0.5, count)) if other else (held | (free & self.chance(0.6, count)))
            else:
                sprite = self._pick(split, "hand", count)
                on = held
                size = torch.where(on, art_size * self.uniform(0.7, 1.5, count), short * self.uniform(0.2, 0.9, count))
                x = torch.where(
                    on, art_x + art_size * self.uniform(-0.2, 0.2, count), width * self.uniform(0, 1, count)
                )
                y = torch.where(
                    on, art_y + art_size * self.uniform(0.1, 0.5, count), height * self.uniform(0, 1, count)
                )
                turn = self.uniform(-0.9, 0.9, count)
                active = (held & self.chance(0.85, count)) | (free & self.chance(0.3, count))
            image, alpha, box, face = self._layer(image, sprite, x, y, size, turn, active, content, axis)
            alphas.append(alpha)
            records.append(box)
            face_records.append(face)
        later = torch.zeros_like(alphas[0])
        items, faces = [], []
        for layer in reversed(range(self.LAYERS)):
            box, face = records[layer], face_records[layer]
            alpha = alphas[layer]
            total = alpha.sum((1, 2)).clamp(min=1)
            visible = (alpha * (1 - later)).sum((1, 2)) / total
            state = torch.where(visible < 0.35, torch.full_like(visible, 2.0) * (box[:, 5] > 0), box[:, 5])
            items.append(torch.cat([box[:, :5], state[:, None]], 1))
            hidden = covered(later, face[:, None, 1:5])[:, 0]
            state = torch.where((hidden > 0.35) & (face[:, 5] > 0), 2.0, face[:, 5])
            faces.append(torch.cat([face[:, :5], state[:, None]], 1))
            later = torch.maximum(later, alpha)
        hidden = covered(later, base[..., 1:5])
        state = torch.where((hidden > 0.5) & (base[..., 5] == 1), 2.0, base[..., 5])
        state = torch.where(hidden > 0.85, 0.0, state)
        base = torch.cat([base[..., :5], state[..., None]], -1)
        is_face = base[..., 0] == FACE
        base_items, base_faces = base.clone(), base.clone()
        base_items[..., 5] = torch.where(is_face, 0.0, base[..., 5])
        base_faces[..., 5] = torch.where(is_face, base[..., 5], 0.0)
        base_faces[..., 0] = 0
        return (
            image,
            torch.cat([torch.stack(items, 1), base_items], 1),
            torch.cat([torch.stack(faces, 1), base_faces], 1),
        )

    def _layer(
        self,
        image: Tensor,
        sprite: Tensor,
        x: Tensor,
        y: Tensor,
        size: Tensor,
        turn: Tensor,
        active: Tensor,
        content: Tensor,
        axis: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count = len(image)
        stretch, mirrored = torch.exp(self.uniform(-0.15, 0.15, count)), self.chance(0.5, count)
        cos, sin = torch.cos(turn)[:, None, None], torch.sin(turn)[:, None, None]
        dx, dy = axis[None, None, :] - x[:, None, None], axis[None, :, None] - y[:, None, None]
        wide, high = (size * stretch)[:, None, None], size[:, None, None]
        u = (dx * cos + dy * sin) / wide * 2
        v = (dy * cos - dx * sin) / high * 2
        u = torch.where(mirrored[:, None, None], -u, u)
        warped = F.grid_sample(self.sprites[sprite].float(), torch.stack([u, v], -1), align_corners=False)
        alpha = warped[:, 3:] / 255 * content * active[:, None, None, None]
        gain = self.uniform(0.55, 1.35, count, 1, 1, 1) * self.uniform(0.85, 1.15, count, 3, 1, 1)
        slope = (
            1
            + self.uniform(-0.35, 0.35, count, 1, 1, 1) * (u[:, None] * 0.5)
            + self.uniform(-0.35, 0.35, count, 1, 1, 1) * (v[:, None] * 0.5)
        )
        grain = self.uniform(0, 14, count, 1, 1, 1) * torch.randn(
            (count, 1, SIDE, SIDE), generator=self.rng, device=self.device
        )
        see_through = torch.where(
            self.chance(0.15, count), self.uniform(0.55, 0.9, count), torch.ones(count, device=self.device)
        )
        opacity = alpha * see_through[:, None, None, None]
        image = image * (1 - opacity) + (warped[:, :3] * gain * slope + grain) * opacity
        solid = alpha[:, 0] > 0.35
        columns, rows = solid.any(1).float(), solid.any(2).float()
        left, right = columns.argmax(1).float(), SIDE - columns.flip(1).argmax(1).float()
        top, bottom = rows.argmax(1).float(), SIDE - rows.flip(1).argmax(1).float()
        whole = (self.sprites[sprite, 3].float().mean((1, 2)) / 255) * size * size * stretch
        inside = alpha.sum((1, 2, 3)) / whole.clamp(min=1)
        label = self.label[sprite].float()
        least = torch.where(label == 0, 0.2, 0.4)  # often only a part of a person is in the picture
        state = torch.where((inside > least) & (torch.maximum(right - left, bottom - top) >= 9), 1.0, 2.0)
        state = torch.where(active & solid.any(2).any(1), state, 0.0)
        box = torch.stack([label, left, top, right, bottom, state], 1)
        share = self.face[sprite]
        centre_u, centre_v = share[:, 0] + share[:, 2] / 2 - 0.5, share[:, 1] + share[:, 3] / 2 - 0.5
        centre_u = torch.where(mirrored, -centre_u, centre_u)
        along, below = centre_u * size * stretch, centre_v * size
        fx = x + along * cos[:, 0, 0] - below * sin[:, 0, 0]
        fy = y + along * sin[:, 0, 0] + below * cos[:, 0, 0]
        fw, fh = share[:, 2] * size * stretch, share[:, 3] * size
        bounds = torch.stack([fx - fw / 2, fy - fh / 2, fx + fw / 2, fy + fh / 2], 1)
        limit = torch.stack([content[:, 0, 0].sum(1), content[:, 0, :, 0].sum(1)] * 2, 1)
        clipped = torch.minimum(bounds.clamp(min=0), limit)
        seen = (clipped[:, 2] - clipped[:, 0]) * (clipped[:, 3] - clipped[:, 1]) / (fw * fh).clamp(min=1)
        face_state = torch.where((seen > 0.6) & (fh >= 9), 1.0, 2.0)
        face_state = torch.where(active & (share[:, 0] >= 0) & (seen > 0.05), face_state, 0.0)
        face = torch.cat([torch.zeros_like(fx)[:, None], clipped, face_state[:, None]], 1)
        return image, alpha[:, 0], box, face

    def _photographed(self, image: Tensor, content: Tensor) -> Tensor:
        """Return the pictures in another light, blurred and noisy as from a camera."""
        count = len(image)
        x = image.clamp(0, 255) / 255
        x = x ** torch.exp(self.uniform(-0.5, 0.5, count, 1, 1, 1))
        grey = x.mean(1, keepdim=True)
        x = grey + (x - grey) * self.uniform(0.2, 1.5, count, 1, 1, 1)
        x = (x - 0.5) * self.uniform(0.6, 1.3, count, 1, 1, 1) + 0.5 + self.uniform(-0.15, 0.15, count, 1, 1, 1)
        x = x * torch.exp(self.uniform(-0.18, 0.18, count, 3, 1, 1))
        smaller = float(self.uniform(0.3, 1.0, 1))
        blurred = F.interpolate(
            F.interpolate(x, scale_factor=smaller, mode="bilinear", antialias=False), (SIDE, SIDE), mode="bilinear"
        )
        x = torch.where(self.chance(0.35, count)[:, None, None, None], blurred, x)
        noise = torch.randn(x.shape, generator=self.rng, device=self.device)
        x = x + self.uniform(0, 1, count, 1, 1, 1) ** 3 * 0.09 * noise
        return (255 * x.clamp(0, 1)).round() * content

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Return the frames that were held out, fitted into 320 x 320, with all their boxes."""
        pictures, tables = [], []
        for n in self.held:
            height, width = (int(side) for side in self.sizes[n])
            scale = SIDE / max(height, width)
            to = (round(height * scale), round(width * scale))
            part = F.interpolate(
                self.pictures[n : n + 1, :, :height, :width].float(), to, mode="bilinear", antialias=True
            )
            pictures.append(F.pad(part, (0, SIDE - to[1], 0, SIDE - to[0])))
            table = self.table[n].clone()
            table[:, 1:5] *= scale
            tables.append(table)
        return torch.cat(pictures), torch.stack(tables)


def bgr(data: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return uint8 [height, width, 3] of planes Y, U and V (4:2:0, BT.601)."""
    y = data[: height * width].reshape(height, width).astype(np.float32)
    u, v = data[height * width :].reshape(2, height // 2, width // 2).astype(np.float32).repeat(2, 1).repeat(2, 2) - 128
    y = 1.164 * (y - 16)
    made: NDArray[np.uint8] = np.clip(
        np.stack([y + 2.018 * u, y - 0.391 * u - 0.813 * v, y + 1.596 * v], -1), 0, 255
    ).astype(np.uint8)
    return made


def covered(mask: Tensor, boxes: Tensor) -> Tensor:
    """Return the mean of masks [n, 320, 320] within boxes [n, k, 4]."""
    total = F.pad(mask.cumsum(1).cumsum(2), (1, 0, 1, 0))
    x0, y0, x1, y1 = boxes.round().long().clamp(0, SIDE).unbind(-1)
    n = torch.arange(len(mask), device=mask.device)[:, None].expand_as(x0)
    inside = total[n, y1, x1] - total[n, y0, x1] - total[n, y1, x0] + total[n, y0, x0]
    return inside / ((x1 - x0) * (y1 - y0)).clamp(min=1)

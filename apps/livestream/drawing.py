"""Drawn articles, hands and presenters: for the demo's own clip, and for the training of the app's own models.

A drawing is an image uint8 [size, size, 4], BGR and opacity. Its variant (shape, colours, proportions) comes from a
random generator, so that training sees many and the same seed gives the same drawing.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle import cv

type Image = NDArray[np.uint8]
type Colour = tuple[float, float, float]
type Point = tuple[float, float]

_FINER = 3  # times finer than the result while drawing, which makes smooth edges
SKINS: Sequence[Colour] = (
    (200, 215, 245), (170, 195, 235), (140, 170, 220), (110, 145, 200), (80, 115, 170), (55, 80, 130), (40, 55, 95),
)  # fmt: skip
HAIRS: Sequence[Colour] = ((20, 22, 25), (25, 35, 60), (45, 70, 110), (90, 150, 200), (130, 130, 135), (40, 50, 140))


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """`image` uint8 [size, size, 4]; `face` is the face's box left, top, width, height in shares of the size."""

    image: Image
    face: tuple[float, float, float, float] | None = None


class _Canvas:
    """A square to draw on, with places from 0 to 1."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._fine = size * _FINER
        self.colour = np.zeros((self._fine, self._fine, 3), np.uint8)
        self.opacity = np.zeros((self._fine, self._fine), np.uint8)

    def _place(self, point: Point) -> tuple[int, int]:
        return round(point[0] * self._fine), round(point[1] * self._fine)

    def _each(self, draw: Callable[[Any, Any], Any], colour: Colour) -> None:
        self.colour = np.asarray(draw(self.colour, colour))
        self.opacity = np.asarray(draw(self.opacity, 255))

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        places = np.array([self._place(point) for point in points], np.int32)
        self._each(lambda image, value: cv.fillPoly(image, [places], value), colour)

    def ellipse(self, at: Point, axes: Point, colour: Colour, *, angle: float = 0, thickness: float = 0) -> None:
        thick = max(1, round(thickness * self._fine)) if thickness else -1
        place, sides = self._place(at), self._place(axes)
        self._each(lambda image, value: cv.ellipse(image, place, sides, angle, 0, 360, value, thick), colour)

    def line(self, start: Point, end: Point, colour: Colour, thickness: float) -> None:
        thick = max(1, round(thickness * self._fine))
        self._each(lambda image, value: cv.line(image, self._place(start), self._place(end), value, thick), colour)

    def limb(self, points: Sequence[Point], colour: Colour, thickness: float) -> None:
        """Draw lines with round ends."""
        for start, end in itertools.pairwise(points):
            self.line(start, end, colour, thickness)
        for point in points:
            self.ellipse(point, (thickness / 2, thickness / 2), colour)

    def shade(self, across: Sequence[float], down: Sequence[float] = (1.0, 1.0)) -> None:
        """Multiply the colours by brightnesses given along the width and the height of what is drawn."""
        rows, columns = np.nonzero(self.opacity)
        if not len(rows):
            return
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        x = np.interp(np.linspace(0, 1, right - left), np.linspace(0, 1, len(across)), across)
        y = np.interp(np.linspace(0, 1, bottom - top), np.linspace(0, 1, len(down)), down)
        part = self.colour[top:bottom, left:right] * (y[:, None] * x[None, :])[:, :, None]
        self.colour[top:bottom, left:right] = np.clip(part, 0, 255).astype(np.uint8)

    def finished(self) -> Image:
        side = (self.size, self.size)
        weight = self.opacity.astype(np.float32) / 255
        seen = np.asarray(
            cv.resize(np.ascontiguousarray(self.colour * weight[:, :, None]), side, interpolation=cv.INTER_AREA)
        )
        opacity = np.asarray(cv.resize(weight, side, interpolation=cv.INTER_AREA)).reshape(side)
        colour = seen.reshape(*side, 3) / np.maximum(opacity, 1e-3)[:, :, None]
        return np.clip(np.dstack([colour, 255 * opacity]) + 0.5, 0, 255).astype(np.uint8)


def _any_colour(rng: np.random.Generator) -> Colour:
    """Return a colour, vivid or dull, bright or dark."""
    hue, saturation, value = rng.uniform(0, 6), rng.uniform(0, 1) ** 0.7, rng.uniform(0.12, 1)
    parts = [value * (1 - saturation * max(0.0, min(1.0, abs((hue + shift) % 6 - 3) - 1))) for shift in (0, 2, 4)]
    return (255 * parts[0], 255 * parts[1], 255 * parts[2])


def _darker(colour: Colour, share: float) -> Colour:
    return (min(255, colour[0] * share), min(255, colour[1] * share), min(255, colour[2] * share))


def _print(canvas: _Canvas, rng: np.random.Generator, left: float, top: float, right: float, bottom: float) -> None:
    """Draw what looks like a label's or a cover's print: a field, bars as lines of text, a disc."""
    ink, height = _any_colour(rng), bottom - top
    if rng.random() < 0.5:
        canvas.ellipse(
            (rng.uniform(left, right) * 0.5 + (left + right) * 0.25, top + height * rng.uniform(0.3, 0.7)),
            ((right - left) * rng.uniform(0.12, 0.3), height * rng.uniform(0.1, 0.25)), _any_colour(rng),
        )  # fmt: skip
    for number in range(int(rng.integers(1, 6))):
        y = top + height * (0.15 + 0.15 * number)
        inset = (right - left) * rng.uniform(0.08, 0.3)
        if y < bottom - 0.04 * height:
            canvas.line((left + inset, y), (right - inset, y), ink, max(0.008, height * rng.uniform(0.02, 0.09)))


def _round_shade(rng: np.random.Generator) -> list[float]:
    """Return brightnesses across something round, with a highlight."""
    base = [rng.uniform(0.45, 0.8), 0.9, 1.05, 1.05, 0.9, rng.uniform(0.4, 0.75)]
    shine = int(rng.integers(1, 5))
    base[shine] += rng.uniform(0.1, 0.6)
    return [value for value in base for _ in (0, 1)]


def bottle(size: int, rng: np.random.Generator) -> Drawing:
    """Draw a bottle: of water, juice or wine, with a cap and often a label."""
    canvas = _Canvas(size)
    body, colour = rng.uniform(0.11, 0.2), _any_colour(rng)
    neck, shoulder = body * rng.uniform(0.28, 0.6), rng.uniform(0.22, 0.45)
    mouth = rng.uniform(0.09, 0.15)
    waist = body * (rng.uniform(0.8, 1.0) if rng.random() < 0.4 else 1.0)
    steps = np.linspace(0, 1, 8)
    side = [(neck, mouth)]
    side += [
        (neck + (body - neck) * (1 - math.cos(math.pi * s)) / 2, mouth + 0.03 + (shoulder - mouth) * s) for s in steps
    ]
    side += [(waist, (shoulder + 0.96) / 2), (body, 0.9), (body * 0.93, 0.97)]
    canvas.polygon([(0.5 + x, y) for x, y in side] + [(0.5 - x, y) for x, y in reversed(side)], colour)
    if rng.random() < 0.7:
        top, bottom = shoulder + rng.uniform(0.08, 0.16), rng.uniform(0.68, 0.88)
        reach = waist * 0.99
        canvas.polygon(
            [(0.5 - reach, top), (0.5 + reach, top), (0.5 + reach, bottom), (0.5 - reach, bottom)], _any_colour(rng)
        )
        _print(canvas, rng, 0.5 - reach, top, 0.5 + reach, bottom)
    canvas.shade(_round_shade(rng))
    cap = neck * rng.uniform(1.0, 1.25)
    canvas.polygon([(0.5 - cap, 0.03), (0.5 + cap, 0.03), (0.5 + cap, mouth), (0.5 - cap, mouth)], _any_colour(rng))
    return Drawing(canvas.finished())


def cup(size: int, rng: np.random.Generator) -> Drawing:
    """Draw a mug with a handle, a glass or a paper cup with a lid."""
    canvas = _Canvas(size)
    colour, kind = _any_colour(rng), rng.random()
    is_tall = kind < 0.35
    top, bottom = (0.18, 0.95) if is_tall else (rng.uniform(0.22, 0.32), rng.uniform(0.8, 0.9))
    wide = rng.uniform(0.2, 0.26) if is_tall else rng.uniform(0.26, 0.33)
    narrow = wide * rng.uniform(0.68, 0.85) if is_tall else wide * rng.uniform(0.75, 1.0)
    centre, flat = (0.5, 0.045) if is_tall else (0.42, rng.uniform(0.04, 0.09))
    if not is_tall:
        reach = rng.uniform(0.1, 0.16)
        ring = (reach, (bottom - top) * rng.uniform(0.26, 0.36))
        canvas.ellipse(
            (centre + wide * 0.97, (top + bottom) / 2), ring, _darker(colour, 0.85), thickness=rng.uniform(0.04, 0.065)
        )
    canvas.ellipse((centre, bottom), (narrow, flat), colour)
    canvas.polygon(
        [(centre - wide, top), (centre + wide, top), (centre + narrow, bottom), (centre - narrow, bottom)], colour
    )
    if rng.random() < 0.5:
        _print(canvas, rng, centre - narrow, top + 0.1, centre + narrow, bottom)
    canvas.shade(_round_shade(rng))
    if is_tall and kind < 0.25:
        lid = _darker(_any_colour(rng), 1.0)
        canvas.polygon(
            [
                (centre - wide * 1.06, top),
                (centre - wide * 0.9, top - 0.1),
                (centre + wide * 0.9, top - 0.1),
                (centre + wide * 1.06, top),
            ],
            lid,
        )
        canvas.ellipse((centre, top), (wide * 1.06, 0.03), lid)
    else:
        canvas.ellipse((centre, top), (wide, flat), _darker(colour, rng.uniform(0.85, 1.25)))
        canvas.ellipse((centre, top + flat * 0.2), (wide * 0.88, flat * 0.75), _darker(_any_colour(rng), 0.5))
    return Drawing(canvas.finished())


def phone(size: int, rng: np.random.Generator) -> Drawing:
    """Draw a phone, its screen or its back."""
    canvas = _Canvas(size)
    half, bezel = rng.uniform(0.2, 0.27), rng.uniform(0.012, 0.03)
    case = _darker(_any_colour(rng), rng.uniform(0.15, 0.7)) if rng.random() < 0.7 else _any_colour(rng)
    corner = rng.uniform(0.03, 0.07)

    def slab(left: float, top: float, right: float, bottom: float, radius: float, colour: Colour) -> None:
        canvas.polygon(
            [(left + radius, top), (right - radius, top), (right - radius, bottom), (left + radius, bottom)], colour
        )
        canvas.polygon(
            [(left, top + radius), (right, top + radius), (right, bottom - radius), (left, bottom - radius)], colour
        )
        for x in (left + radius, right - radius):
            for y in (top + radius, bottom - radius):
                canvas.ellipse((x, y), (radius, radius), colour)

    slab(0.5 - half, 0.04, 0.5 + half, 0.96, corner, case)
    if rng.random() < 0.65:
        screen = _any_colour(rng) if rng.random() < 0.7 else (25.0, 22.0, 20.0)
        slab(0.5 - half + bezel, 0.04 + bezel, 0.5 + half - bezel, 0.96 - bezel, corner * 0.8, screen)
        if rng.random() < 0.7:
            for row in range(int(rng.integers(2, 6))):
                for column in range(int(rng.integers(1, 5))):
                    x, y = 0.5 - half * 0.7 + column * half * 0.45, 0.15 + row * 0.13
                    canvas.polygon(
                        [(x, y), (x + half * 0.3, y), (x + half * 0.3, y + half * 0.3), (x, y + half * 0.3)],
                        _any_colour(rng),
                    )
        canvas.ellipse((0.5, 0.075), (0.012, 0.012), (15, 15, 15))
    else:
        x, y = 0.5 - half * 0.6, 0.04 + rng.uniform(0.06, 0.1)
        slab(x - 0.05, y - 0.03, x + 0.09, y + 0.15, 0.03, _darker(case, 0.7))
        for place in range(int(rng.integers(1, 4))):
            canvas.ellipse((x + 0.02, y + 0.015 + 0.045 * place), (0.02, 0.02), (20, 18, 18))
    canvas.shade([rng.uniform(0.8, 1.1), rng.uniform(0.9, 1.2), rng.uniform(0.8, 1.0)], [1.1, rng.uniform(0.8, 1.0)])
    return Drawing(canvas.finished())


def book(size: int, rng: np.random.Generator) -> Drawing:
    """Draw a book, closed with its pages' edge or open."""
    canvas = _Canvas(size)
    cover, page = _any_colour(rng), _darker((235, 240, 245), rng.uniform(0.8, 1.05))
    if rng.random() < 0.25:
        top, sag = rng.uniform(0.2, 0.3), rng.uniform(0.02, 0.08)
        for side in (-1, 1):
            outer, inner = 0.5 + side * 0.46, 0.5
            canvas.polygon([(inner, top + sag - 0.02), (outer, top - 0.02), (outer, 0.82), (inner, 0.82 + sag)], cover)
            canvas.polygon(
                [(inner, top + sag), (outer - side * 0.02, top), (outer - side * 0.02, 0.8), (inner, 0.8 + sag)], page
            )
            for row in range(int(rng.integers(5, 10))):
                y = top + 0.08 + row * 0.05
                canvas.line((0.5 + side * 0.05, y + sag * 0.8), (0.5 + side * 0.4, y), (90, 90, 95), 0.012)
        canvas.line((0.5, top + sag), (0.5, 0.8 + sag), _darker(page, 0.6), 0.012)
        return Drawing(canvas.finished())
    half, thick = rng.uniform(0.27, 0.38), rng.uniform(0.02, 0.08)
    lean = rng.uniform(-0.05, 0.05)
    left, right, top, bottom = 0.48 - half, 0.48 + half, 0.05, 0.95 - thick * 0.4
    canvas.polygon(
        [(right, top + 0.02), (right + thick, top + 0.04), (right + thick, bottom - 0.01), (right, bottom)], page
    )
    canvas.polygon(
        [(left, bottom), (right, bottom), (right + thick, bottom + thick * 0.4), (left + thick, bottom + thick * 0.4)],
        page,
    )
    canvas.polygon([(left, top + lean), (right, top), (right, bottom), (left, bottom + lean * 0.3)], cover)
    canvas.polygon(
        [(left, top + lean), (left + 0.05, top + lean), (left + 0.05, bottom), (left, bottom + lean * 0.3)],
        _darker(cover, 0.75),
    )
    if rng.random() < 0.5:
        canvas.polygon(
            [(left + 0.1, 0.45), (right - 0.05, 0.45), (right - 0.05, 0.8), (left + 0.1, 0.8)], _any_colour(rng)
        )
    _print(canvas, rng, left + 0.06, top + 0.05, right, bottom)
    canvas.shade([rng.uniform(0.8, 1.1), rng.uniform(0.8, 1.1)], [1.05, rng.uniform(0.75, 1.0)])
    return Drawing(canvas.finished())


def article(size: int, rng: np.random.Generator) -> Drawing:
    """Draw another article: a box, a tube, a disc or a gadget."""
    canvas = _Canvas(size)
    colour, kind = _any_colour(rng), int(rng.integers(0, 4))
    if kind == 0:
        width, height, depth = rng.uniform(0.4, 0.7), rng.uniform(0.35, 0.7), rng.uniform(0.08, 0.2)
        left, top = 0.5 - (width + depth) / 2, 0.5 - (height - depth) / 2
        right, bottom = left + width, top + height
        canvas.polygon(
            [(left, top), (left + depth, top - depth), (right + depth, top - depth), (right, top)],
            _darker(colour, 1.25),
        )
        canvas.polygon(
            [(right, top), (right + depth, top - depth), (right + depth, bottom - depth), (right, bottom)],
            _darker(colour, 0.6),
        )
        canvas.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)
        if rng.random() < 0.4:
            ribbon, x = _any_colour(rng), (left + right) / 2
            canvas.line((x, top), (x, bottom), ribbon, 0.05)
            canvas.line((left, (top + bottom) / 2), (right, (top + bottom) / 2), ribbon, 0.05)
        else:
            _print(canvas, rng, left, top, right, bottom)
    elif kind == 1:
        half, cap = rng.uniform(0.08, 0.16), rng.uniform(0.15, 0.3)
        canvas.polygon(
            [(0.5 - half, 0.05), (0.5 + half, 0.05), (0.5 + half * 1.1, 1 - cap), (0.5 - half * 1.1, 1 - cap)], colour
        )
        _print(canvas, rng, 0.5 - half, 0.1, 0.5 + half, 1 - cap)
        canvas.polygon(
            [
                (0.5 - half * 0.7, 1 - cap),
                (0.5 + half * 0.7, 1 - cap),
                (0.5 + half * 0.7, 0.95),
                (0.5 - half * 0.7, 0.95),
            ],
            _any_colour(rng),
        )
        canvas.shade(_round_shade(rng))
    elif kind == 2:
        reach, flat = rng.uniform(0.3, 0.44), rng.uniform(0.6, 1.0)
        canvas.ellipse((0.5, 0.5), (reach, reach * flat), colour)
        canvas.ellipse((0.5, 0.5), (reach * 0.85, reach * 0.85 * flat), _any_colour(rng))
        if rng.random() < 0.6:
            canvas.ellipse((0.5, 0.5), (reach * 0.3, reach * 0.3 * flat), _any_colour(rng))
        canvas.shade(_round_shade(rng), [1.1, 0.8])
    else:
        reach, high = rng.uniform(0.3, 0.42), rng.uniform(0.14, 0.26)
        canvas.polygon(
            [
                (0.5 - reach, 0.5 - high),
                (0.5 + reach, 0.5 - high),
                (0.5 + reach, 0.5 + high),
                (0.5 - reach, 0.5 + high),
            ],
            colour,
        )
        for side in (-1, 1):
            canvas.ellipse((0.5 + side * reach, 0.5), (high * 0.5, high), colour)
        for _ in range(int(rng.integers(1, 5))):
            at = (0.5 + rng.uniform(-0.8, 0.8) * reach, 0.5 + rng.uniform(-0.5, 0.5) * high)
            canvas.ellipse(at, (rng.uniform(0.02, 0.08),) * 2, _any_colour(rng))
        canvas.shade([1.0, 1.1, 0.8], [1.15, 0.75])
    return Drawing(canvas.finished())


def hand(size: int, rng: np.random.Generator) -> Drawing:
    """Draw a hand that comes from below, closed around something or open, with a forearm, bare or in a sleeve."""
    canvas = _Canvas(size)
    skin = SKINS[int(rng.integers(len(SKINS)))]
    sleeve = _any_colour(rng) if rng.random() < 0.6 else skin
    palm, lean = rng.uniform(0.13, 0.17), rng.uniform(-0.2, 0.2)
    wrist, centre = (0.5 + lean * 0.3, 0.62), (0.5, 0.42)
    canvas.limb([(0.5 + lean, 1.05), wrist], skin, palm * 1.15)
    if sleeve is not skin:
        start = rng.uniform(0.72, 0.9)
        canvas.limb([(0.5 + lean, 1.1), (0.5 + lean * (start - 0.4), start)], sleeve, palm * 1.6)
    canvas.ellipse(centre, (palm, palm * 1.25), skin)
    canvas.limb([wrist, centre], skin, palm * 1.3)
    closed = rng.random() < 0.7
    finger = palm * rng.uniform(0.42, 0.52)
    edge = _darker(skin, 0.75)
    for number in range(4):
        if closed:  # fingers across the palm
            y = 0.3 + number * finger * 1.05
            canvas.limb([(0.5 - palm * 0.9, y), (0.5 + palm * rng.uniform(0.5, 0.9), y + 0.01)], edge, finger * 1.15)
            canvas.limb([(0.5 - palm * 0.9, y), (0.5 + palm * rng.uniform(0.5, 0.9), y + 0.01)], skin, finger)
        else:
            x = 0.5 + palm * (-0.75 + 0.5 * number)
            tip = (x + (x - 0.5) * rng.uniform(0.2, 0.7), 0.42 - palm * rng.uniform(1.7, 2.3))
            canvas.limb([(x, 0.36), tip], edge, finger * 1.12)
            canvas.limb([(x, 0.36), tip], skin, finger)
    canvas.limb([(0.5 + palm, 0.5), (0.5 + palm * rng.uniform(1.1, 1.6), rng.uniform(0.25, 0.38))], skin, finger * 1.15)
    canvas.shade([rng.uniform(0.75, 1.05), 1.05, rng.uniform(0.75, 1.05)], [1.05, 0.85])
    image = canvas.finished()
    return Drawing(np.ascontiguousarray(image[:, ::-1]) if rng.random() < 0.5 else image)


def presenter(size: int, rng: np.random.Generator, *, mouth: float | None = None) -> Drawing:
    """Draw a person from the front, head and shoulders or down to the waist. `mouth` opens it, 0 to 1."""
    canvas = _Canvas(size)
    skin, hair = SKINS[int(rng.integers(len(SKINS)))], HAIRS[int(rng.integers(len(HAIRS)))]
    shirt, high = _any_colour(rng), rng.uniform(0.12, 0.27)  # half the face's height
    wide, x = high * rng.uniform(0.7, 0.84), 0.5 + rng.uniform(-0.04, 0.04)
    y = high * 1.25 + rng.uniform(0.03, 0.08)
    chin, shoulder = y + high, high * rng.uniform(1.7, 2.3)
    turn = rng.uniform(-0.18, 0.18) * wide  # offset of the nose from the middle
    long_hair, bald = rng.random() < 0.4, rng.random() < 0.12
    if long_hair:
        canvas.ellipse((x, y + high * 0.2), (wide * rng.uniform(1.25, 1.5), high * rng.uniform(1.3, 1.7)), hair)
    elif not bald:
        canvas.ellipse((x, y - high * 0.2), (wide * 1.14, high * 1.04), hair)
    canvas.polygon(
        [
            (x - wide * 0.5, y),
            (x + wide * 0.5, y),
            (x + wide * 0.55, chin + high * 0.5),
            (x - wide * 0.55, chin + high * 0.5),
        ],
        _darker(skin, 0.8),
    )
    top = chin + high * rng.uniform(0.12, 0.25)
    canvas.polygon(
        [
            (x - wide * 0.7, top),
            (x + wide * 0.7, top),
            (x + shoulder, top + high * 0.5),
            (x + shoulder * 1.1, 1.1),
            (x - shoulder * 1.1, 1.1),
            (x - shoulder, top + high * 0.5),
        ],
        shirt,
    )
    canvas.ellipse((x, top), (wide * 0.6, high * 0.3), _darker(skin, 0.85))
    for side in (-1, 1):
        canvas.ellipse((x + side * wide, y + high * 0.05), (wide * 0.14, high * 0.2), _darker(skin, 0.9))
    canvas.ellipse((x, y), (wide, high), skin)
    if not bald:  # the hair line
        reach = rng.uniform(0.55, 0.8)
        canvas.polygon(
            [
                (x - wide * 1.02, y - high * 0.2),
                (x - wide * 0.7, y - high * reach),
                (x + wide * rng.uniform(-0.3, 0.5), y - high * (reach - 0.08)),
                (x + wide * 0.75, y - high * reach),
                (x + wide * 1.02, y - high * 0.2),
                (x + wide * 0.8, y - high * 1.0),
                (x, y - high * 1.22),
                (x - wide * 0.8, y - high * 1.0),
            ],
            hair,
        )
    _features(canvas, rng, (x, y), (wide, high), skin, hair, turn, mouth)
    light = rng.uniform(0.75, 1.05)
    canvas.shade([light, 1.05, 1.8 - light], [1.05, 0.9])
    face = (x - wide * 0.97, y - high * 0.62, 2 * wide * 0.97, high * 1.62)
    return Drawing(canvas.finished(), face)


def _features(
    canvas: _Canvas,
    rng: np.random.Generator,
    at: Point,
    axes: Point,
    skin: Colour,
    hair: Colour,
    turn: float,
    mouth: float | None,
) -> None:
    (x, y), (wide, high) = at, axes
    level, apart, size = (
        y - high * rng.uniform(0.02, 0.14),
        wide * rng.uniform(0.38, 0.46),
        wide * rng.uniform(0.13, 0.19),
    )
    glasses, beard = rng.random() < 0.3, rng.random() < 0.25
    iris = ((60, 40, 25), (40, 60, 90), (140, 110, 60), (30, 30, 30))[int(rng.integers(4))]
    if beard:
        canvas.ellipse((x + turn * 0.5, y + high * 0.62), (wide * 0.72, high * 0.4), hair)
        canvas.ellipse((x + turn * 0.5, y + high * 0.42), (wide * 0.5, high * 0.24), skin)
    for side in (-1, 1):
        eye = (x + side * apart + turn, level)
        canvas.ellipse((eye[0], eye[1] - size * 0.15), (size * 1.3, size * 0.95), _darker(skin, 0.82))
        canvas.ellipse(eye, (size, size * rng.uniform(0.45, 0.65)), (242, 244, 245))
        canvas.ellipse((eye[0] + turn * 0.2, eye[1]), (size * 0.45, size * 0.48), iris)
        canvas.line(
            (eye[0] - size, eye[1] - size * 0.45), (eye[0] + size, eye[1] - size * 0.45), (35, 35, 40), high * 0.025
        )
        lift = high * rng.uniform(0.14, 0.2)
        canvas.line(
            (eye[0] - size * 1.3, eye[1] - lift),
            (eye[0] + size * 1.3, eye[1] - lift * rng.uniform(0.9, 1.15)),
            _darker(hair, 0.9),
            high * rng.uniform(0.04, 0.075),
        )
        if glasses:
            canvas.ellipse(eye, (size * 1.7, size * 1.4), (30, 30, 35), thickness=high * 0.03)
    nose = (x + turn * 1.5, y + high * 0.3)
    canvas.line((x + turn, level + size * 0.3), nose, _darker(skin, 0.86), wide * 0.1)
    canvas.ellipse(nose, (wide * rng.uniform(0.15, 0.22), high * 0.075), _darker(skin, 0.8))
    canvas.ellipse((nose[0], nose[1] - high * 0.03), (wide * 0.12, high * 0.06), _darker(skin, 1.05))
    opened = rng.uniform(0, 1) ** 2 if mouth is None else mouth
    lips = (x + turn, y + high * rng.uniform(0.56, 0.64))
    canvas.ellipse(
        lips,
        (wide * rng.uniform(0.3, 0.4), high * (0.055 + 0.09 * opened)),
        (95, 95, 185) if skin[0] > 90 else (60, 60, 120),
    )
    canvas.ellipse(lips, (wide * 0.24, high * (0.012 + 0.07 * opened)), (40, 30, 60) if opened > 0.3 else (60, 55, 120))


ARTICLES: dict[str, Callable[[int, np.random.Generator], Drawing]] = {
    "bottle": bottle, "cup": cup, "cell phone": phone, "book": book, "article": article,
}  # fmt: skip

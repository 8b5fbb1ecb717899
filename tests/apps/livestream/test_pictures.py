"""Colours, sizes and directions of decoded pictures."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from apps.livestream.media.image import ImageConverter, output_size, turned
from apps.livestream.media.limits import MediaLimits
from tests.apps.livestream.media_files import Movie, frames_of, read

SQUARE = Fraction(1)
# ITU-T H.273 MatrixCoefficients: weights of red and blue in luma.
MATRICES = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
LIMITED, FULL = 1, 2
UNSPECIFIED = 2


def convert(frame: av.VideoFrame, max_side: int | None = None, aspect: Fraction = SQUARE) -> npt.NDArray[np.uint8]:
    return ImageConverter(max_side, MediaLimits()).upright(frame, aspect).copy()


def yuv_frame(
    kind: str, depth: int, halves: tuple[int, int], size: tuple[int, int] = (64, 48)
) -> tuple[av.VideoFrame, list[npt.NDArray[np.float64]]]:
    """Return a frame of flat blocks of 16 x 16 random colours, and its three planes at full size."""
    generator = np.random.default_rng(7)
    width, height = size
    frame = av.VideoFrame(width, height, kind)
    scale = 1 << (depth - 8)
    dtype = np.uint8 if depth == 8 else np.uint16
    planes = []
    for index, (low, high) in enumerate([(40, 210), (100, 156), (100, 156)]):
        values = generator.integers(low * scale, high * scale, (height // 16, width // 16))
        plane = np.kron(values, np.ones((16, 16))).astype(np.float64)
        planes.append(plane)
        across, down = halves if index else (1, 1)
        coded = plane[::down, ::across].astype(dtype)
        target = frame.planes[index]
        rows = np.zeros((coded.shape[0], target.line_size // coded.itemsize), dtype)
        rows[:, : coded.shape[1]] = coded
        target.update(rows.tobytes())
    return frame, planes


def reference(planes: list[npt.NDArray[np.float64]], matrix: int, full: bool, depth: int) -> npt.NDArray[np.float64]:
    """Return BGR by the equations of ITU-T H.273, 8.3."""
    red, blue = MATRICES[matrix]
    scale, top = 1 << (depth - 8), (1 << depth) - 1
    y, u, v = planes
    y = y / top if full else (y - 16 * scale) / (219 * scale)
    u, v = ((chroma - 128 * scale) / (top if full else 224 * scale) for chroma in (u, v))
    r, b = y + 2 * (1 - red) * v, y + 2 * (1 - blue) * u
    g = (y - red * r - blue * b) / (1 - red - blue)
    return np.clip(np.stack([b, g, r], axis=-1) * 255, 0, 255)


def worst(image: npt.NDArray[np.uint8], expected: npt.NDArray[np.float64]) -> float:
    """Return the largest difference within the blocks, whose edges chroma upsampling may blur."""
    height, width = image.shape[:2]
    differences = np.abs(image - expected).reshape(height // 16, 16, width // 16, 16, 3)
    return float(differences[:, 4:12, :, 4:12].max())


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(
    ("kind", "depth", "halves"),
    [
        ("yuv420p", 8, (2, 2)),
        ("yuv422p", 8, (2, 1)),
        ("yuv444p", 8, (1, 1)),
        ("yuv420p10le", 10, (2, 2)),
        ("yuv422p10le", 10, (2, 1)),
        ("yuv444p12le", 12, (1, 1)),
    ],
)
def test_colours_are_those_of_the_frames_matrix_and_range(
    kind: str, depth: int, halves: tuple[int, int], matrix: int, full: bool
) -> None:
    frame, planes = yuv_frame(kind, depth, halves)
    frame.colorspace, frame.color_range = matrix, FULL if full else LIMITED
    assert worst(convert(frame), reference(planes, matrix, full, depth)) <= 3


@pytest.mark.parametrize(("size", "matrix"), [((64, 48), 6), ((1280, 720), 1), ((720, 576), 6), ((720, 592), 1)])
def test_a_frame_without_a_matrix_has_that_of_its_size(size: tuple[int, int], matrix: int) -> None:
    frame, planes = yuv_frame("yuv420p", 8, (2, 2), size)
    frame.colorspace = UNSPECIFIED
    assert worst(convert(frame), reference(planes, matrix, False, 8)) <= 3
    other = 1 if matrix == 6 else 6
    assert worst(convert(frame), reference(planes, other, False, 8)) > 3


def test_full_range_of_jpeg_formats_is_known_without_a_tag() -> None:
    frame, planes = yuv_frame("yuvj420p", 8, (2, 2))
    assert worst(convert(frame), reference(planes, 6, True, 8)) <= 3


def test_unknown_matrices_are_taken_for_the_usual_one() -> None:
    frame, planes = yuv_frame("yuv444p", 8, (1, 1))
    frame.colorspace = 3  # reserved: FFmpeg's scaler refuses it
    assert worst(convert(frame), reference(planes, 6, False, 8)) <= 3


@pytest.mark.parametrize("kind", ["gray", "gray10le", "rgb24", "bgr24", "rgba", "gbrp", "pal8"])
def test_grey_and_rgb_keep_their_values(kind: str) -> None:
    values = np.random.default_rng(3).integers(0, 256, (31, 47, 3), np.uint8)
    if kind.startswith("gray"):
        values[:] = values[..., :1]
    if kind == "pal8":
        values &= 0xE0
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format="bgr24").reformat(format="rgb8")
        values = frame.to_ndarray(format="bgr24").astype(np.uint8)
    else:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format="bgr24").reformat(format=kind)
    differences = np.abs(convert(frame).astype(int) - values)
    assert differences.max() <= (2 if kind.startswith("gray") else 0)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (17, 1), (101, 67), (66, 50)])
def test_odd_sizes_keep_every_pixel(size: tuple[int, int]) -> None:
    width, height = size
    values = np.random.default_rng(5).integers(0, 256, (height, width, 3), np.uint8)
    image = convert(av.VideoFrame.from_ndarray(values, format="bgr24"))
    assert image.shape == (height, width, 3)
    assert np.array_equal(image, values)


@pytest.mark.parametrize(
    ("size", "aspect", "max_side", "expected"),
    [
        ((640, 360), Fraction(1), None, (640, 360)),
        ((640, 360), Fraction(1), 320, (320, 180)),
        ((360, 640), Fraction(1), 320, (180, 320)),
        ((640, 360), Fraction(1), 1000, (640, 360)),
        ((720, 576), Fraction(16, 15), None, (768, 576)),
        ((720, 576), Fraction(64, 45), 512, (512, 288)),
        ((100, 100), Fraction(1, 2), None, (100, 200)),
        ((4000, 1), Fraction(1), 100, (100, 1)),
        ((100, 100), Fraction(100_000), None, (100, 100)),
        ((100, 100), Fraction(0), None, (100, 100)),
    ],
)
def test_sizes_have_square_pixels_and_a_bound(
    size: tuple[int, int], aspect: Fraction, max_side: int | None, expected: tuple[int, int]
) -> None:
    assert output_size(*size, aspect, max_side) == expected


def test_a_smaller_picture_is_the_mean_of_the_larger() -> None:
    values = np.random.default_rng(9).integers(0, 256, (256, 256, 3), np.uint8)
    image = convert(av.VideoFrame.from_ndarray(values, format="bgr24"), max_side=32)
    means = values.reshape(32, 8, 32, 8, 3).mean(axis=(1, 3))
    assert image.shape == (32, 32, 3)
    assert np.abs(image - means).mean() < 12  # a nearest-pixel scaler has 64


QUADRANTS = {"top left": 30, "top right": 90, "bottom left": 150, "bottom right": 210}


@pytest.mark.parametrize("rotation", [0, 90, 180, 270, -90])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.asyncio
async def test_rotation_is_applied(tmp_path: Path, rotation: int, suffix: str) -> None:
    """`rotation` is counter-clockwise, as the encoder's option has it."""
    upright = np.zeros((96, 160, 3), np.uint8)
    for index, level in enumerate(QUADRANTS.values()):
        upright[index // 2 * 48 :][:48, index % 2 * 80 :][:, :80] = level
    path = tmp_path / f"a{suffix}"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 160, 96, "yuv420p"
        video.set_display_rotation(rotation)
        frame = av.VideoFrame.from_ndarray(upright, format="bgr24")
        frame.pts = 0
        container.mux(video.encode(frame) + video.encode(None))
    with av.open(str(path)) as container:
        decoded = next(container.decode(video=0))
        assert decoded.rotation % 360 == rotation % 360
    items, _ = await read(path)
    expected = np.rot90(upright, rotation // 90 % 4)
    assert items[0].image.shape == expected.shape  # type: ignore[union-attr]
    assert items[0].image.flags.c_contiguous  # type: ignore[union-attr]
    assert np.abs(items[0].image.astype(int) - expected).mean() < 4  # type: ignore[union-attr]
    small, _ = await read(path, max_side=80)
    assert max(small[0].image.shape) == 80  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ((1, 0, 0, 1), [[1, 2, 3], [4, 5, 6]]),
        ((-1, 0, 0, 1), [[3, 2, 1], [6, 5, 4]]),
        ((1, 0, 0, -1), [[4, 5, 6], [1, 2, 3]]),
        ((0, 1, 1, 0), [[1, 4], [2, 5], [3, 6]]),
        ((0, 1, -1, 0), [[4, 1], [5, 2], [6, 3]]),
        ((0, -1, 1, 0), [[3, 6], [2, 5], [1, 4]]),
        ((0, -1, -1, 0), [[6, 3], [5, 2], [4, 1]]),
        (None, [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_mirrored_pictures_are_turned(matrix: tuple[int, int, int, int] | None, expected: list[list[int]]) -> None:
    image = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)[..., None].repeat(3, axis=2)
    assert turned(image, matrix)[..., 0].tolist() == expected


@pytest.mark.asyncio
async def test_pixel_aspect_of_a_file_is_applied(tmp_path: Path) -> None:
    path = Movie(seconds=1, aspect=Fraction(2), sound_rate=0).write(tmp_path / "a.mp4")
    items, _ = await read(path)
    assert {frame.image.shape for frame in frames_of(items)} == {(32, 256, 3)}


@pytest.mark.asyncio
async def test_a_size_that_changes_within_a_stream(tmp_path: Path) -> None:
    small = Movie(seconds=1, sound_rate=0, size=(128, 32)).write(tmp_path / "small.ts")
    large = Movie(seconds=1, sound_rate=0, size=(160, 64)).write(tmp_path / "large.ts")
    path = tmp_path / "both.ts"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    items, report = await read(path)
    assert [frame.image.shape[:2] for frame in frames_of(items)] == [(32, 128)] * 10 + [(64, 160)] * 10
    assert report.frames.unusable == 0

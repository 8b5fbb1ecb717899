"""walle.cv's lines, regions, text, shapes and equalization by tiles against OpenCV's, which its tutorials use first."""

import math
from pathlib import Path
from typing import Any

import cv2
import numpy
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import walle.cv as cv
import walle.np as np
from tests.sim.vm_task import write_task
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError
from walle.errors import EngineError
from walle.vm import VM, LimitExceeded, TaskError

EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.generate])
IMAGES = Path(__file__).parents[3] / "shared/data/images"


def drawing(seed: int, lines: int = 6) -> numpy.ndarray:
    """Return white lines on black, with noise."""
    random = numpy.random.default_rng(seed)
    image = (random.random((120, 160)) > 0.99).astype("uint8") * 255
    for _ in range(lines):
        a, b = random.integers(0, 120, (2, 2)).tolist()
        cv2.line(image, a, b, 255, 1)
    return image


def same(ours: Any, theirs: Any, tolerance: float = 0.0) -> None:
    if theirs is None:
        assert ours is None
        return
    assert ours is not None
    assert str(ours.dtype) == str(theirs.dtype)
    numpy.testing.assert_allclose(numpy.asarray(ours), theirs, rtol=0, atol=tolerance)


@EXAMPLES
@given(st.integers(0, 1000), st.sampled_from([15, 40, 90]), st.sampled_from([(1, 1.0), (2, 0.5), (1.5, 3.0)]))
def test_lines_are_opencvs(seed: int, threshold: int, steps: tuple[float, float]) -> None:
    image, rho, theta = drawing(seed), steps[0], math.radians(steps[1])
    same(cv.HoughLines(image, rho, theta, threshold), cv2.HoughLines(image, rho, theta, threshold), 1e-4)


@EXAMPLES
@given(
    st.integers(0, 1000),
    st.sampled_from([(1, 1.0), (2, 2.0), (0.5, 0.5)]),
    st.sampled_from([10, 30]),
    st.integers(0, 30),
    st.integers(0, 10),
)
def test_segments_are_opencvs(seed: int, steps: tuple[float, float], threshold: int, length: int, gap: int) -> None:
    options: dict[str, Any] = {"minLineLength": length, "maxLineGap": gap}
    image, rho, theta = drawing(seed), steps[0], math.radians(steps[1])
    same(
        cv.HoughLinesP(image, rho, theta, threshold, **options),
        cv2.HoughLinesP(image, rho, theta, threshold, **options),
    )


def test_quotients_of_integers_as_floats_are_opencvs() -> None:
    image = numpy.array([[3, 0, 8]], "uint8")
    below = numpy.array([[0, 0, 4]], "uint8")
    theirs = cv2.divide(image, below, dtype=cv2.CV_32F)
    numpy.testing.assert_array_equal(numpy.asarray(cv.divide(image, below, dtype=cv.CV_32F)), theirs)


def test_segments_of_noise_are_opencvs() -> None:
    random = numpy.random.default_rng(1)
    options: dict[str, Any] = {"minLineLength": 5, "maxLineGap": 2}
    for _ in range(30):
        image = (random.random((30, 41)) < 0.15).astype("uint8") * 255
        for _ in range(3):
            a, b, c, d = random.integers(0, 30, 4).tolist()
            cv2.line(image, (a, b), (c, d), 255)
        for rho, theta, threshold in ((1, math.pi / 180, 12), (2, math.pi / 90, 15), (0.5, math.pi / 360, 9)):
            theirs = cv2.HoughLinesP(image, rho, theta, threshold, **options)
            same(cv.HoughLinesP(image, rho, theta, threshold, **options), theirs)


def test_lines_with_steps_that_mean_nothing_are_refused() -> None:
    image = np.zeros((9, 9), "uint8")
    for rho, theta in ((0, 1), (1, 0), (-1, 1), (1, math.nan), (1e300, 1), (1, 1e-300)):
        with pytest.raises(EngineError, match="rho and theta must be above 0"):
            cv.HoughLines(image, rho, theta, 1)
    for low, high in ((1e300, 1e300), (-1e300, 1), (0, 2e3)):
        with pytest.raises(EngineError, match="between -1000 and 1000"):
            cv.HoughLines(np.ones((9, 9), "uint8"), 1, 1, 1, min_theta=low, max_theta=high)
    with pytest.raises(EngineError, match="use a larger rho or theta"):
        cv.HoughLinesP(image, 1e-6, 1e-6, 1)
    with pytest.raises(ShapeError, match="takes uint8"):
        cv.HoughLinesP(np.zeros((9, 9), "float32"), 1, 1, 1)


@EXAMPLES
@given(
    st.integers(0, 1000), st.sampled_from([4, 8, 4 | (1 << 16), 8 | (77 << 8), 4 | (5 << 8) | (1 << 17)]), st.booleans()
)
def test_filled_regions_are_opencvs(seed: int, flags: int, coloured: bool) -> None:
    random = numpy.random.default_rng(seed)
    height, width = random.integers(1, 40, 2).tolist()
    image = random.integers(0, 4, (height, width, 3) if coloured else (height, width)).astype("uint8") * 64
    mask = (random.random((height + 2, width + 2)) > 0.9).astype("uint8")
    at = int(random.integers(width)), int(random.integers(height))
    near = (64, 64, 0)
    ours = cv.floodFill(np.array(image), np.array(mask), at, (9, 8, 7), near, near, flags)
    theirs = cv2.floodFill(image, mask, at, (9, 8, 7), near, near, flags)
    assert ours[0] == theirs[0]
    same(ours[1], theirs[1])
    assert numpy.array_equal(numpy.asarray(ours[2]), theirs[2])
    assert ours[3] == tuple(theirs[3])


@EXAMPLES
@given(st.integers(0, 1000), st.sampled_from([0.5, 2.0, 40.0, 0.0]), st.sampled_from([(8, 8), (2, 3), (1, 1)]))
def test_equalization_by_tiles_is_opencvs(seed: int, limit: float, tiles: tuple[int, int]) -> None:
    random = numpy.random.default_rng(seed)
    shape = tuple(random.integers(20, 90, 2).tolist())
    image = (cv2.GaussianBlur(random.random(shape), (0, 0), 3) * 255).astype("uint8")
    ours, theirs = cv.createCLAHE(limit, tiles).apply(image), cv2.createCLAHE(limit, tiles).apply(image)
    differences = numpy.abs(numpy.asarray(ours).astype(int) - theirs)
    assert differences.max() <= 1
    assert (differences > 0).mean() < 0.01


BOUNDED = """
import walle.np as np
from walle import cv

def votes():
    cv.HoughLines(np.zeros((9, 9), "uint8"), 1, 2e-6, 1)

def tones():
    cv.createCLAHE(2.0, (500, 500)).apply(np.zeros((500, 500), "uint8"))
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["votes", "tones"])
async def test_memory_of_votes_and_tones_counts_as_the_tasks(name: str, tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, BOUNDED), limits={"memory_mb": 24})
    with pytest.raises((TaskError, LimitExceeded)) as stopped:
        await vm.call(name)
    assert "memory" in str(stopped.value).lower() or "alloc" in str(stopped.value)
    vm.close()
    assert await vm.wait_closed()


def test_the_settings_of_equalization_can_be_read() -> None:
    clahe = cv.createCLAHE(2.0, (4, 5))
    assert (clahe.getClipLimit(), clahe.getTilesGridSize()) == (2.0, (4, 5))
    with pytest.raises(ShapeError):
        clahe.setTilesGridSize((0, 3))
    with pytest.raises(DTypeError):
        clahe.apply(np.zeros((4, 4), "float32"))


@EXAMPLES
@given(st.integers(0, 1000), st.integers(1, 40))
def test_circles_around_points_are_opencvs(seed: int, count: int) -> None:
    points = (numpy.random.default_rng(seed).random((count, 1, 2)) * 100).astype("float32")
    (x, y), radius = cv.minEnclosingCircle(points)
    (their_x, their_y), their_radius = cv2.minEnclosingCircle(points)
    assert (x, y, radius) == pytest.approx((their_x, their_y, their_radius), abs=2e-2)


@EXAMPLES
@given(st.integers(0, 1000), st.booleans())
def test_the_place_of_a_point_is_opencvs(seed: int, measured: bool) -> None:
    random = numpy.random.default_rng(seed)
    polygon = random.integers(0, 20, (7, 1, 2)).astype("int32")
    for _ in range(20):
        x, y = random.integers(0, 20, 2).tolist()
        point = (float(x), float(y))
        theirs = cv2.pointPolygonTest(polygon, point, measured)
        assert cv.pointPolygonTest(polygon, point, measured) == pytest.approx(theirs, abs=1e-4)


@EXAMPLES
@given(st.integers(0, 1000))
def test_lines_through_points_and_shapes_compare_as_in_opencv(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    points = (random.random((30, 2)) * [50, 8]).astype("float32")
    ours = numpy.asarray(cv.fitLine(points, cv2.DIST_L2, 0, 0.01, 0.01)).ravel()
    theirs = cv2.fitLine(points, cv2.DIST_L2, 0, 0.01, 0.01).ravel()
    assert abs(ours[:2] @ theirs[:2]) == pytest.approx(1, abs=1e-4)
    assert ours[2:] == pytest.approx(theirs[2:], rel=1e-4)
    one, other = (cv2.convexHull((random.random((9, 1, 2)) * 60).astype("float32")) for _ in range(2))
    assert numpy.asarray(cv.HuMoments(cv.moments(one))) == pytest.approx(
        cv2.HuMoments(cv2.moments(one)), rel=1e-6, abs=1e-12
    )
    for method in (1, 2, 3):
        assert cv.matchShapes(one, other, method, 0) == pytest.approx(cv2.matchShapes(one, other, method, 0), rel=1e-6)


def test_text_has_a_shape_for_every_character_and_the_size_that_is_told() -> None:
    shapes = set()
    for code in range(33, 127):
        image = np.zeros((60, 60), "uint8")
        cv.putText(image, chr(code), (20, 30), cv.FONT_HERSHEY_SIMPLEX, 1, 255)
        shapes.add(image.tobytes())
    assert len(shapes) == 127 - 33
    (width, height), base = cv.getTextSize("Walle", cv.FONT_HERSHEY_SIMPLEX, 1, 2)
    image = np.zeros((200, 200), "uint8")
    assert cv.putText(image, "Walle", (20, 100), cv.FONT_HERSHEY_SIMPLEX, 1, 255, 2) is image
    left, top, wide, high = cv.boundingRect(image)
    assert left >= 18
    assert wide <= width
    assert 100 - height - 1 <= top <= 100 - height + 3
    assert top + high <= 100 + base
    assert image.sum() > 0
    smaller, _ = cv.getTextSize("Walle", cv.FONT_HERSHEY_PLAIN, 1, 2)
    assert smaller < (width, height)
    with pytest.raises(UnsupportedError):
        cv.putText(image, "x", (0, 0), 99, 1, 255)


def test_text_outside_ascii_becomes_question_marks() -> None:
    images = [np.zeros((60, 90), "uint8") for _ in range(2)]
    for image, text in zip(images, ("ü→", "??"), strict=True):
        cv.putText(image, text, (5, 40), cv.FONT_HERSHEY_SIMPLEX, 1, 255)
    assert images[0].tobytes() == images[1].tobytes()


def test_helpers_of_networks_are_where_opencv_has_them() -> None:
    assert cv.dnn.blobFromImage(np.zeros((4, 5, 3), "uint8")).shape == (1, 3, 4, 5)
    assert cv.dnn.NMSBoxes([[0, 0, 4, 4], [0, 0, 4, 4]], [0.9, 0.8], 0.5, 0.4).tolist() == [0]


def test_a_running_mean_is_opencvs() -> None:
    random = numpy.random.default_rng(3)
    image, ours = (
        random.integers(0, 256, (9, 8, 3)).astype("uint8"),
        np.asarray(random.random((9, 8, 3)).astype("float32")),
    )
    theirs = numpy.array(ours)
    mask = (random.random((9, 8)) > 0.5).astype("uint8")
    for chosen in (None, mask):
        cv.accumulateWeighted(image, ours, 0.2, chosen)
        cv2.accumulateWeighted(image, theirs, 0.2, mask=chosen)
    assert numpy.asarray(ours) == pytest.approx(theirs, abs=1e-4)


@pytest.mark.skipif(not IMAGES.exists(), reason=f"{IMAGES} is not there")
def test_a_face_is_found_by_its_own_picture() -> None:
    photo = cv.imdecode(np.frombuffer((IMAGES / "face_with_toy.jpg").read_bytes(), dtype="uint8"), cv.IMREAD_COLOR)
    assert photo is not None
    top, left, height, width = 40, 180, 60, 50
    fit = cv.matchTemplate(photo, photo[top : top + height, left : left + width].copy(), cv.TM_CCOEFF_NORMED)
    _, best, _, place = cv.minMaxLoc(fit)
    assert best == pytest.approx(1, abs=1e-3)
    assert place == (left, top)

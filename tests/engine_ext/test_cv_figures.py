"""walle.cv's contours, drawing, blobs and files against OpenCV's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import walle.cv as cv
import walle.np as np

EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.generate])
IMAGES = Path(__file__).parents[3] / "shared/data/images"


def blobs(seed: int, height: int = 60, width: int = 80) -> numpy.ndarray:
    noise = cv2.GaussianBlur(numpy.random.default_rng(seed).random((height, width)), (0, 0), 2)
    blobs: numpy.ndarray = (noise > noise.mean()).astype("uint8") * 255
    return blobs


@EXAMPLES
@given(st.integers(0, 1000), st.sampled_from(range(4)), st.sampled_from([1, 2]))
def test_contours_are_opencvs_point_for_point(seed: int, mode: int, method: int) -> None:
    ours, tree = cv.findContours(blobs(seed), mode, method)
    theirs, their_tree = cv2.findContours(blobs(seed), mode, method)
    assert [numpy.asarray(one).tolist() for one in ours] == [one.tolist() for one in theirs]
    assert numpy.array_equal(numpy.asarray(tree), their_tree)


def test_an_empty_image_has_no_contour() -> None:
    assert cv.findContours(np.zeros((5, 5), "uint8"), cv.RETR_LIST, cv.CHAIN_APPROX_NONE) == ((), None)


@EXAMPLES
@given(st.integers(0, 1000))
def test_contours_measure_as_in_opencv(seed: int) -> None:
    for contour in cv2.findContours(blobs(seed), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)[0]:
        assert cv.contourArea(contour) == pytest.approx(cv2.contourArea(contour))
        assert cv.arcLength(contour, True) == pytest.approx(cv2.arcLength(contour, True), rel=1e-5)
        assert cv.boundingRect(contour) == cv2.boundingRect(contour)
        for clockwise in (False, True):
            hull = cv.convexHull(contour, clockwise=clockwise)
            assert hull.tolist() == cv2.convexHull(contour, clockwise=clockwise).tolist()
            places = cv.convexHull(contour, clockwise=clockwise, returnPoints=False)
            assert places.tolist() == cv2.convexHull(contour, clockwise=clockwise, returnPoints=False).tolist()
        (_, ours, _), (_, theirs, _) = cv.minAreaRect(contour), cv2.minAreaRect(contour)
        assert ours[0] * ours[1] == pytest.approx(theirs[0] * theirs[1], rel=1e-3, abs=1e-3)
        kept = numpy.asarray(cv.approxPolyDP(contour, 2.0, True)).reshape(-1, 2)
        for point in contour.reshape(-1, 2):  # none exceeds the tolerance
            assert abs(cv2.pointPolygonTest(kept.astype("float32"), tuple(map(float, point)), True)) <= 2.0 + 1e-3


@EXAMPLES
@given(st.integers(0, 1000), st.booleans(), st.sampled_from(["int32", "float32"]))
def test_moments_of_contours_are_opencvs(seed: int, backwards: bool, dtype: str) -> None:
    for contour in cv2.findContours(blobs(seed), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]:
        points = numpy.ascontiguousarray(contour[:: -1 if backwards else 1]).astype(dtype)
        ours, theirs = cv.moments(points), cv2.moments(points)
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6 * max(map(abs, theirs.values())))


def test_moments_without_area_are_zero() -> None:
    assert set(cv.moments(numpy.array([[1, 2], [7, 9]], "int32")).values()) == {0.0}


@EXAMPLES
@given(st.integers(0, 1000), st.integers(1, 30), st.booleans())
def test_hulls_of_scattered_points_are_opencvs(seed: int, count: int, clockwise: bool) -> None:
    points = numpy.random.default_rng(seed).integers(0, 40, (count, 1, 2)).astype("int32")
    ours, theirs = cv.convexHull(points, clockwise=clockwise), cv2.convexHull(points, clockwise=clockwise)
    assert ours.tolist() == theirs.tolist()


@EXAMPLES
@given(st.integers(0, 1000), st.sampled_from([4, 8]))
def test_components_are_opencvs(seed: int, connectivity: int) -> None:
    image = blobs(seed)
    count, labels, stats, centres = cv.connectedComponentsWithStats(image, connectivity=connectivity)
    want_count, want, want_stats, want_centres = cv2.connectedComponentsWithStats(image, connectivity=connectivity)
    assert count == want_count
    # Components may be numbered in another order; their pixels must be the same.
    pairs = set(zip(numpy.asarray(labels).ravel().tolist(), want.ravel().tolist(), strict=True))
    assert len(pairs) == count
    for ours, theirs in pairs:
        assert stats[ours].tolist() == want_stats[theirs].tolist()
        assert centres[ours].tolist() == pytest.approx(want_centres[theirs].tolist())


def canvas(
    draw: Callable[[Any, Any], Any], shape: tuple[int, ...] = (90, 120, 3)
) -> tuple[numpy.ndarray, numpy.ndarray]:
    theirs, ours = numpy.zeros(shape, "uint8"), np.zeros(shape, "uint8")
    draw(cv2, theirs)
    draw(cv, ours)
    return numpy.asarray(ours), theirs


points = st.tuples(st.integers(-40, 160), st.integers(-40, 130))
COLOUR = (250, 20, 3)


@EXAMPLES
@given(points, points, st.lists(points, min_size=3, max_size=6), st.integers(0, 60))
def test_figures_are_opencvs(a: Any, b: Any, corners: Any, radius: int) -> None:
    polygon = [numpy.array(corners, "int32")]
    for draw in (
        lambda c, image: c.line(image, a, b, COLOUR),
        lambda c, image: c.rectangle(image, a, b, COLOUR),
        lambda c, image: c.rectangle(image, a, b, COLOUR, -1),
        lambda c, image: c.circle(image, a, radius, COLOUR),
        lambda c, image: c.circle(image, a, radius, COLOUR, -1),
        lambda c, image: c.polylines(image, polygon, True, COLOUR),
        lambda c, image: c.arrowedLine(image, a, b, COLOUR),
    ):
        ours, theirs = canvas(draw)
        assert numpy.array_equal(ours, theirs)


@EXAMPLES
@given(points, points, st.lists(points, min_size=3, max_size=6), st.integers(2, 9))
def test_thick_and_filled_figures_are_nearly_opencvs(a: Any, b: Any, corners: Any, thickness: int) -> None:
    for draw in (
        lambda c, image: c.line(image, a, b, COLOUR, thickness),
        lambda c, image: c.fillPoly(image, [numpy.array(corners, "int32")], COLOUR),
        lambda c, image: c.ellipse(image, a, (thickness * 4, thickness * 3), 30, 0, 360, COLOUR, -1),
    ):
        ours, theirs = (image[..., 0] != 0 for image in canvas(draw))
        # Edge pixels may differ.
        edge = cv2.morphologyEx(theirs.astype("uint8"), cv2.MORPH_GRADIENT, numpy.ones((3, 3), "uint8"))
        assert (ours != theirs).sum() <= 0.25 * edge.sum() + 12


def test_drawing_writes_into_views() -> None:
    ours = np.zeros((40, 50, 3), "uint8")
    cv.circle(ours[5:35, 10:40], (15, 15), 8, COLOUR, -1)
    theirs = numpy.zeros((40, 50, 3), "uint8")
    cv2.circle(theirs, (25, 20), 8, COLOUR, -1)
    assert numpy.array_equal(numpy.asarray(ours), theirs)


def test_blobs_are_opencvs() -> None:
    image = numpy.random.default_rng(1).integers(0, 256, (40, 50, 3)).astype("uint8")
    for options in ({"swapRB": True}, {"crop": True}, {"swapRB": True, "crop": True}):
        want = cv2.dnn.blobFromImages([image, image[::-1].copy()], 1 / 255, (32, 24), (104, 117, 123), **options)
        ours = cv.blobFromImages([image, image[::-1]], 1 / 255, (32, 24), (104, 117, 123), **options)
        numpy.testing.assert_allclose(numpy.asarray(ours), want, atol=1 / 250)


@EXAMPLES
@given(st.integers(0, 1000))
def test_suppression_is_opencvs(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    boxes = numpy.concatenate([random.integers(0, 60, (30, 2)), random.integers(5, 40, (30, 2))], 1).astype(float)
    scores = random.random(30)
    ours = cv.NMSBoxes(boxes, scores, 0.2, 0.4)
    assert ours.tolist() == list(cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), 0.2, 0.4))


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_files_are_opencvs(suffix: str, tmp_path: Path) -> None:
    if not cv.haveImageReader(f"x{suffix}"):
        with pytest.raises(Exception, match="built without"):
            cv.imencode(suffix, np.zeros((4, 4), "uint8"))
        return
    image = cv2.GaussianBlur(numpy.random.default_rng(2).integers(0, 256, (37, 53, 3)).astype("uint8"), (0, 0), 2)
    for picture in (image, image[..., 0]):
        ok, data = cv.imencode(suffix, picture)
        assert ok
        theirs = cv2.imdecode(numpy.asarray(data), cv2.IMREAD_UNCHANGED)
        ours = cv.imdecode(data, cv.IMREAD_UNCHANGED)
        assert ours is not None
        assert theirs is not None
        assert ours.shape == theirs.shape
        assert numpy.abs(numpy.asarray(ours).astype(int) - theirs).max() <= (0 if suffix == ".png" else 2)
    assert cv.imdecode(data.tobytes()[:40]) is None
    assert cv.imdecode(b"no image") is None


def test_real_pictures_give_opencvs_results() -> None:
    files = sorted(IMAGES.glob("*.png")) + sorted(IMAGES.glob("*.jpg"))
    if not files or not cv.haveImageReader("x.png"):
        pytest.skip("no pictures here, or no reader for them")
    for file in files[:3]:
        theirs = cv2.imread(str(file))
        ours = cv.imdecode(file.read_bytes())
        assert ours is not None
        assert numpy.abs(numpy.asarray(ours).astype(int) - theirs).max() <= 3
        small = numpy.asarray(cv.resize(theirs, (224, 224))).astype(int)
        assert numpy.abs(small - cv2.resize(theirs, (224, 224))).max() <= 1
        edges = numpy.asarray(cv.Canny(cv.cvtColor(theirs, cv.COLOR_BGR2GRAY), 80, 160))
        assert numpy.array_equal(edges, cv2.Canny(cv2.cvtColor(theirs, cv2.COLOR_BGR2GRAY), 80, 160))

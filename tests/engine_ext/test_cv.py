"""walle.cv against OpenCV, over shapes, views, dtypes, borders and interpolations."""

from typing import Any

import cv2
import numpy
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import walle.cv as cv
import walle.np as np
from tests.engine_ext.cv_cases import CASES, Case, Picture, numbers
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError
from walle.errors import EngineError

EXAMPLES = settings(
    max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@st.composite
def pictures(draw: Any, dtypes: tuple[str, ...], channels: tuple[int, ...]) -> Picture:
    random = numpy.random.default_rng(draw(st.integers(0, 2**32)))
    height, width, count = draw(st.integers(1, 70)), draw(st.integers(1, 70)), draw(st.sampled_from(channels))
    step_y, step_x = draw(st.sampled_from([(1, 1), (1, 2), (3, 1), (-1, 1)]))
    shape = (height * abs(step_y), width * step_x) + ((count,) if count > 1 else ())
    return Picture(numbers(random, shape, draw(st.sampled_from(dtypes)))[::step_y, ::step_x], random)


def check(got: Any, want: Any, case: Case) -> None:
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            check(ours, theirs, case)
        return
    ours, theirs = numpy.asarray(got), numpy.asarray(want)
    assert ours.shape == theirs.shape
    if isinstance(want, numpy.ndarray):
        assert ours.dtype == theirs.dtype
    if theirs.dtype.kind in "iu":
        differences = numpy.abs(ours.astype("int64") - theirs.astype("int64"))
        assert differences.max(initial=0) <= case.levels + (case.single > 0)
        assert (differences > case.levels).sum() <= case.single
    else:
        rounding = 1e-6 * numpy.abs(theirs).max(initial=0)  # float32 sums of large terms that cancel
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=max(case.close, rounding))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@EXAMPLES
@given(data=st.data())
def test_a_function_gives_what_opencv_gives(case: Case, data: st.DataObject) -> None:
    picture = data.draw(pictures(case.dtypes, case.channels))
    args, options = case.draw(data, picture)
    try:
        # OpenCV gets a copy of a strided picture; walle.cv gets the view.
        want = getattr(cv2, case.name)(
            *(numpy.ascontiguousarray(a) if isinstance(a, numpy.ndarray) else a for a in args), **options
        )
    except cv2.error:
        return  # OpenCV refuses these arguments
    check(getattr(cv, case.name)(*args, **options), want, case)


# Tolerance, in levels, of uint8 conversions that are computed in floats.
COLORS = {name: getattr(cv2, name) for name in dir(cv) if name.startswith("COLOR_")}
BY_FLOATS = ("HSV2", "HLS", "LAB", "Lab", "LUV", "Luv")


@pytest.mark.parametrize("name", sorted({code: name for name, code in COLORS.items()}.values()))
def test_colours_of_bytes_are_opencvs(name: str) -> None:
    source = name.removeprefix("COLOR_").partition("2")[0]
    random = numpy.random.default_rng(7)
    four, two, one = (
        random.integers(0, 256, (42, 70, 4)),
        random.integers(0, 256, (42, 70, 2)),
        random.integers(0, 256, (42, 70)),
    )
    source_channels: Any = four if source.endswith("RGBA") or source == "BGRA" else four[..., :3]
    if (
        source == "GRAY"
        or (
            source == "YUV"
            and "_" in name[9:]
            and not any(k in name for k in ("Y422", "YUY", "YVY", "UYV", "UYN", "YUN"))
        )
        or "420" in name
    ):
        source_channels = one
    elif (
        source in {"BGR555", "BGR565", "BGR5"}
        or name[6:12] in {"BGR555", "BGR565"}
        or (source == "YUV" and "_" in name[9:])
    ):
        source_channels = two
    image = numpy.ascontiguousarray(source_channels).astype("uint8")
    if source.upper() in {"LUV", "LAB"}:  # valid colours
        image = cv2.cvtColor(image, cv2.COLOR_BGR2Luv if source.upper() == "LUV" else cv2.COLOR_BGR2Lab)
    if source in {"HSV", "HLS"} and "FULL" not in name:
        image[..., 0] %= 180
    code = COLORS[name]
    ours, theirs = numpy.asarray(cv.cvtColor(image, code)), cv2.cvtColor(image, code)
    assert ours.shape == theirs.shape
    far = numpy.abs(ours.astype(int) - theirs)
    if not any(part in name for part in BY_FLOATS):
        assert far.max() == 0
    elif "LUV2" in name.upper() or "LAB2" in name.upper():
        assert numpy.quantile(far, 0.99) <= 2
    else:
        assert numpy.minimum(far, 256 - far).max() <= 1


@pytest.mark.parametrize(
    "name",
    ["BGR2GRAY", "RGB2XYZ", "BGR2YCrCb", "YUV2RGB", "BGR2HSV", "HSV2BGR", "HLS2RGB", "RGB2HLS", "XYZ2BGR", "BGR2RGBA"],
)
def test_colours_of_floats_are_opencvs(name: str) -> None:
    image = numpy.random.default_rng(3).random((30, 50, 3)).astype("float32")
    if name[:3] in {"HSV", "HLS"}:
        image[..., 0] *= 360
    code = getattr(cv2, f"COLOR_{name}")
    numpy.testing.assert_allclose(
        numpy.asarray(cv.cvtColor(image, code)), cv2.cvtColor(image, code), rtol=1e-4, atol=2e-4
    )


def test_constants_are_opencvs() -> None:
    for name in dir(cv):
        if not callable(getattr(cv, name)):
            assert getattr(cv, name) == getattr(cv2, name), name


def test_results_go_into_dst() -> None:
    image = numpy.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")
    target = np.zeros((20, 30, 3), "uint8")
    assert cv.blur(image, (3, 3), target) is target
    assert numpy.array_equal(numpy.asarray(target), cv2.blur(image, (3, 3)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: cv.resize(x, (0, 5)), ShapeError, "width 0 must be at least 1"),
        (lambda x: cv.resize(x, None), ShapeError, "fx and fy"),
        (lambda x: cv.resize(x, (5, 5), interpolation=9), UnsupportedError, "INTER_"),
        (lambda x: cv.cvtColor(x, 9999), UnsupportedError, "COLOR_"),
        (lambda x: cv.cvtColor(x[:, :, 0], cv.COLOR_BGR2GRAY), ShapeError, "3 channels"),
        (lambda x: cv.medianBlur(x, 4), EngineError, "odd"),
        (lambda x: cv.GaussianBlur(x, (4, 4), 0), ShapeError, "odd"),
        (lambda x: cv.warpAffine(x, np.eye(3), (5, 5)), ShapeError, "2 by 3"),
        (lambda x: cv.Canny(x.astype("float32"), 1, 2), DTypeError, "uint8"),
        (lambda x: cv.add(x, x[:5]), ShapeError, "one shape"),
        (lambda x: cv.morphologyEx(x, cv.MORPH_HITMISS, np.eye(3)), DTypeError, "one channel"),
        (lambda x: cv.moments(x), ShapeError, "one channel"),
        (lambda x: cv.threshold(x, 0, 255, cv.THRESH_OTSU), DTypeError, "one channel"),
        (lambda x: cv.blur(np.zeros((0, 5), "uint8"), (3, 3)), ShapeError, "without pixels"),
    ],
)
def test_what_does_not_fit_is_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.zeros((10, 12, 3), "uint8"))


def test_a_number_counts_for_every_channel() -> None:
    image = numpy.full((4, 5, 3), 100, "uint8")
    for ours, wanted in [(cv.subtract(image, 30), 70), (cv.add(image, 30), 130), (cv.multiply(image, 2), 200)]:
        assert (numpy.asarray(ours) == wanted).all()


@pytest.mark.parametrize("way", [cv.THRESH_OTSU, cv.THRESH_TRIANGLE])
def test_bounds_are_found_in_a_third_dimension_of_one(way: int) -> None:
    image = numpy.random.default_rng(5).integers(0, 200, (30, 20, 1)).astype("uint8")
    bound, cut = cv.threshold(image, 0, 255, way)
    want, theirs = cv2.threshold(image, 0, 255, way)
    assert bound == want
    assert numpy.array_equal(numpy.asarray(cut).reshape(30, 20), theirs)
    assert numpy.array_equal(numpy.asarray(cv.equalizeHist(image)).reshape(30, 20), cv2.equalizeHist(image))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_the_nearest_pixels_of_an_image_are_the_image(channels: int, dtype: str) -> None:
    image = numpy.random.default_rng(1).integers(0, 200, (7, 300, channels)).astype(dtype)
    moved = numpy.asarray(
        cv.warpAffine(image, numpy.eye(2, 3), (304, 9), flags=cv.INTER_NEAREST, borderValue=(9, 8, 7, 6))
    )
    assert numpy.array_equal(moved[:7, :300], image)
    assert (moved[7:] == [9, 8, 7, 6][:channels]).all()
    assert (moved[:, 300:] == [9, 8, 7, 6][:channels]).all()


def test_sixteen_bits_are_smoothed_as_in_opencv() -> None:
    for dtype in ("uint16", "int16"):
        image = numpy.random.default_rng(4).integers(-30000, 30000, (31, 45, 3)).astype(dtype)
        for name in ("pyrDown", "pyrUp"):
            assert numpy.array_equal(numpy.asarray(getattr(cv, name)(image)), getattr(cv2, name)(image))
        if dtype == "uint16":
            blurred = numpy.asarray(cv.GaussianBlur(image, (9, 5), 1.7))
            assert numpy.array_equal(blurred, cv2.GaussianBlur(image, (9, 5), 1.7))


@pytest.mark.parametrize(("fx", "fy"), [(1.03, 0.11), (0.48, 0.29), (2.0, 0.5), (0.5, 0.5)])
@pytest.mark.parametrize("way", [cv.INTER_AREA, cv.INTER_LINEAR])
def test_scales_count_where_sizes_are_rounded(fx: float, fy: float, way: int) -> None:
    for shape in ((65, 3), (6, 2, 3), (40, 60)):
        image = numpy.random.default_rng(6).random(shape).astype("float32")
        ours, theirs = (c.resize(image, None, fx=fx, fy=fy, interpolation=way) for c in (cv, cv2))
        numpy.testing.assert_allclose(numpy.asarray(ours), theirs, atol=1e-5)

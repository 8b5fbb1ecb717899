"""walle.np.linalg: decompositions by their defining properties."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np

SIZES = st.integers(1, 9)


def close(a: Any, b: Any, dtype: str, scale: float = 1.0) -> None:
    tolerance = (3e-6 if dtype == "float32" else 1e-13) * max(scale, 1.0)
    numpy.testing.assert_allclose(numpy.asarray(a), numpy.asarray(b), rtol=0, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    SIZES,
    SIZES,
    st.integers(0, 999),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([(), (2,), (2, 1)]),
    st.booleans(),
)
def test_qr_agrees_with_numpy(m: int, n: int, seed: int, dtype: str, stack: tuple[int, ...], complete: bool) -> None:
    there = numpy.random.default_rng(seed).normal(size=(*stack, m, n)).astype(dtype)
    mode: Any = "complete" if complete else "reduced"
    q, r = np.linalg.qr(there, mode)
    for own, expected in zip((q, r), numpy.linalg.qr(there, mode), strict=True):
        close(own, expected, dtype, 100)
    close(q @ r, there, dtype, 10)
    close(
        np.matrix_transpose(q) @ q,
        numpy.broadcast_to(numpy.eye(q.shape[-1]), (*stack, q.shape[-1], q.shape[-1])),
        dtype,
    )


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.integers(0, 999), st.sampled_from(["float32", "float64"]), st.integers(0, 3), st.booleans())
def test_svd_agrees_with_numpy(m: int, n: int, seed: int, dtype: str, rank: int, full: bool) -> None:
    rng = numpy.random.default_rng(seed)
    there = rng.normal(size=(m, n))
    if rank:  # limits the rank
        there = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))
    there = there.astype(dtype)
    u, s, vh = np.linalg.svd(there, full_matrices=full)
    close(s, numpy.linalg.svd(there)[1], dtype, 30)
    k = min(m, n)
    assert (u.shape, vh.shape) == (((m, m), (n, n)) if full else ((m, k), (k, n)))
    close(u[:, :k] * s @ vh[:k], there, dtype, 30)
    close(u.T @ u, numpy.eye(u.shape[1]), dtype)
    close(vh @ vh.T, numpy.eye(vh.shape[0]), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shape", [(12, 12), (33, 40), (64, 50)])
def test_svd_of_large_matrices_of_low_rank(shape: tuple[int, int], rank: int, dtype: str) -> None:
    random = numpy.random.default_rng(rank)
    there = (random.normal(size=(shape[0], rank)) @ random.normal(size=(rank, shape[1]))).astype(dtype)
    for one in (there, numpy.ones(shape, dtype)):
        u, s, vh = (numpy.asarray(part) for part in np.linalg.svd(one, full_matrices=False))
        close(u * s @ vh, one, dtype, 200)
        close(s, numpy.linalg.svd(one)[1], dtype, 200)
        close(u.T @ u, numpy.eye(min(shape)), dtype, 10)
        close(vh @ vh.T, numpy.eye(min(shape)), dtype, 10)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(0, 999),
    st.sampled_from(["float32", "float64"]),
    st.booleans(),
    st.sampled_from("LU"),
)
def test_eigh_agrees_with_numpy(n: int, seed: int, dtype: str, equal: bool, uplo: Any) -> None:
    rng = numpy.random.default_rng(seed)
    there = rng.normal(size=(2, n, n))
    there = there + there.swapaxes(-1, -2)
    if equal:  # a repeated eigenvalue
        basis = numpy.linalg.qr(there)[0]
        there = basis * rng.integers(0, 3, (2, 1, n)) @ basis.swapaxes(-1, -2)
    there = there.astype(dtype)
    other = numpy.tril(there) if uplo == "L" else numpy.triu(there)
    w, v = np.linalg.eigh(other, uplo)
    close(w, numpy.linalg.eigvalsh(there, uplo), dtype, 30)
    whole = np.asarray(numpy.tril(there) + numpy.tril(there, -1).swapaxes(-1, -2) if uplo == "L" else
                       numpy.triu(there) + numpy.triu(there, 1).swapaxes(-1, -2))  # fmt: skip
    close(whole @ v, v * w[:, None, :], dtype, 30)
    close(np.matrix_transpose(v) @ v, numpy.broadcast_to(numpy.eye(n), (2, n, n)), dtype)


def test_a_matrix_of_60_rows_is_solved_inverted_and_decomposed() -> None:
    there = numpy.random.default_rng(0).normal(size=(60, 60))
    close(np.linalg.solve(there, there @ numpy.ones(60)), numpy.ones(60), "float64", 1e3)
    close(np.linalg.inv(there) @ there, numpy.eye(60), "float64", 1e3)
    w, v = np.linalg.eigh(there + there.T)
    close((v * w) @ v.T, there + there.T, "float64", 1e2)
    close(np.linalg.svdvals(there), numpy.linalg.svd(there)[1], "float64", 1e2)


def test_extreme_sizes_keep_their_digits() -> None:
    there = numpy.random.default_rng(0).normal(size=(4, 3))
    for scale in (1e-300, 1e300):
        numpy.testing.assert_allclose(
            numpy.asarray(np.linalg.svdvals(there * scale)) / scale, numpy.linalg.svd(there)[1], rtol=1e-12
        )
        _, r = np.linalg.qr(there * scale)
        numpy.testing.assert_allclose(numpy.asarray(r) / scale, numpy.linalg.qr(there)[1], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: np.linalg.inv([[1.0, 2], [2, 4]]), "singular"),
        (lambda: np.linalg.solve(np.zeros((3, 3)), np.ones(3)), "singular"),
        (lambda: np.linalg.solve(np.eye(3), np.ones(4)), "solve of shapes"),
        (lambda: np.linalg.cholesky([[1.0, 2], [2, 1]]), "positive definite"),
        (lambda: np.linalg.eigh(np.zeros((2, 3))), "square"),
        (lambda: np.linalg.eigh(np.full((3, 3), float("nan"))), "converge"),
        (lambda: np.linalg.svd(np.zeros(3)), "matrices"),
    ],
)
def test_errors_name_what_is_wrong_with_the_matrix(call: Any, message: str) -> None:
    with pytest.raises(np.linalg.LinAlgError, match=message):
        call()


def test_empty_matrices_agree_with_numpy() -> None:
    assert np.linalg.inv(np.zeros((0, 0))).shape == (0, 0)
    assert np.linalg.svd(np.zeros((0, 3)))[2].shape == (3, 3)
    assert np.linalg.det(np.zeros((0, 0))).item() == 1


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [
        (1, 20_000_000, 1, "float32"),  # cut within the sum
        (1, 18_000_000, 1, "float64"),
        (3, 70_000, 300, "int64"),  # cut by columns
        (260, 300, 300, "int64"),  # cut by rows
        (2_000, 64, 2_200, "float32"),  # cut by columns, packed
        (1_100, 1_100, 300, "float32"),
    ],
)
def test_long_products_are_the_same_in_pieces(m: int, k: int, n: int, dtype: str) -> None:
    draw = numpy.random.default_rng(1)
    a, b = (draw.integers(-1, 2, shape, "int8").astype(dtype) for shape in ((m, k), (k, n)))  # sums are exact
    numpy.testing.assert_array_equal(numpy.asarray(np.matmul(np.asarray(a), np.asarray(b))), a @ b)

"""`walle.np`: arrays with NumPy's names, arguments and results, on the engine's operators.

Where it differs from NumPy (scripts/np_page.py gives reasons): floats without a dtype become float32, not float64 (ints
int64, bools bool). A dtype is a string ("float32"), and `np.float32` is that string. What NumPy returns as a scalar is
an array without dimensions; `float(x)`, `x.item()`, comparison, hashing and formatting work on it. Integers given to a
floating function become float64 (int32, int64) or float32 (uint8, bool). Integer conversion saturates. Python
complex numbers without a dtype become complex64. Nothing is written to standard error, except warnings such as
ComplexWarning: division by zero returns inf, NaN or, for integers, 0.

Names are loaded on first use, because every task VM imports this. A module that needs another module's names inside a
function takes them from here, so that a VM registers the load (see `walle.engine_ext.lazy`).
"""

from __future__ import annotations

from walle.engine_ext import lazy

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.np import exceptions as exceptions
    from walle.engine_ext.np import fft as fft
    from walle.engine_ext.np import lib as lib
    from walle.engine_ext.np import linalg as linalg
    from walle.engine_ext.np import random as random
    from walle.engine_ext.np.complex_numbers import *  # noqa: F403
    from walle.engine_ext.np.constants import *  # noqa: F403
    from walle.engine_ext.np.creation import *  # noqa: F403
    from walle.engine_ext.np.elementwise import *  # noqa: F403
    from walle.engine_ext.np.grids import *  # noqa: F403
    from walle.engine_ext.np.indexing import *  # noqa: F403
    from walle.engine_ext.np.kinds import *  # noqa: F403
    from walle.engine_ext.np.manipulation import *  # noqa: F403
    from walle.engine_ext.np.printing import *  # noqa: F403
    from walle.engine_ext.np.products import *  # noqa: F403
    from walle.engine_ext.np.reductions import *  # noqa: F403
    from walle.engine_ext.np.signals import *  # noqa: F403
    from walle.engine_ext.np.sorting import *  # noqa: F403
    from walle.engine_ext.np.statistics import *  # noqa: F403

# Module → its names.

_MODULES = {
    "constants": (
        "False_ True_ bfloat16 bool bool_ byte can_cast cdouble complex128 complex64 csingle double dtype e "
        "euler_gamma finfo float16 float32 float64 half iinfo inf int16 int32 int64 int8 int_ intc intp isscalar "
        "iterable long longlong nan newaxis pi promote_types result_type short single ubyte ufunc uint uint16 "
        "uint32 uint64 uint8 uintc uintp ulong ulonglong ushort"
    ),
    "complex_numbers": "angle conj conjugate imag iscomplex iscomplexobj isreal isrealobj real real_if_close",
    "creation": (
        "arange array asanyarray asarray ascontiguousarray astype bartlett blackman copy diag diagflat empty "
        "empty_like eye frombuffer fromfunction fromiter fromstring full full_like geomspace hamming hanning "
        "identity indices kaiser linspace logspace meshgrid ndarray ones ones_like tri tril triu vander zeros "
        "zeros_like"
    ),
    "elementwise": (
        "abs absolute acos acosh add allclose arccos arccosh arcsin arcsinh arctan arctan2 arctanh around "
        "array_equal array_equiv asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift "
        "bitwise_not bitwise_or bitwise_right_shift bitwise_xor cbrt ceil clip copysign cos cosh deg2rad degrees "
        "divide divmod equal exp exp2 expm1 fabs fix float_power floor floor_divide fmax fmin fmod frexp gcd "
        "greater greater_equal heaviside hypot i0 invert isclose isfinite isinf isnan isneginf isposinf lcm ldexp "
        "left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or "
        "logical_xor maximum minimum mod modf multiply nan_to_num negative nextafter not_equal positive pow power "
        "rad2deg radians reciprocal remainder right_shift rint round round_ sign signbit sin sinc sinh spacing "
        "sqrt square subtract tan tanh true_divide trunc"
    ),
    "grids": "c_ index_exp mgrid ogrid r_ s_",
    "indexing": (
        "argwhere choose compress diag_indices diag_indices_from diagonal extract fill_diagonal flatnonzero ix_ "
        "mask_indices ndenumerate ndindex nonzero place put put_along_axis putmask ravel_multi_index select take "
        "take_along_axis trace tril_indices tril_indices_from triu_indices triu_indices_from unravel_index where"
    ),
    "kinds": (
        "complexfloating errstate floating generic geterr inexact integer isdtype issubdtype number seterr "
        "signedinteger unsignedinteger"
    ),
    "manipulation": (
        "append array_split atleast_1d atleast_2d atleast_3d block broadcast_arrays broadcast_shapes broadcast_to "
        "column_stack concat concatenate copyto delete dsplit dstack expand_dims flip fliplr flipud hsplit hstack "
        "insert matrix_transpose moveaxis ndim pad permute_dims ravel repeat reshape resize roll rollaxis rot90 "
        "row_stack shape size split squeeze stack swapaxes tile transpose trim_zeros unstack vsplit vstack"
    ),
    "printing": (
        "array2string array_repr array_str format_float_positional format_float_scientific get_printoptions "
        "printoptions set_printoptions"
    ),
    "products": "cross dot einsum inner kron matmul matvec outer tensordot vdot vecdot vecmat",
    "reductions": (
        "all amax amin any argmax argmin average count_nonzero cumprod cumsum cumulative_prod cumulative_sum diff "
        "ediff1d gradient max mean min nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmin nanprod "
        "nanstd nansum nanvar prod ptp std sum trapezoid trapz var"
    ),
    "signals": (
        "apply_along_axis base_repr binary_repr convolve correlate packbits piecewise polyadd polyder polyfit "
        "polyint polymul polysub polyval unpackbits unwrap vectorize"
    ),
    "sorting": (
        "argpartition argsort digitize in1d intersect1d isin lexsort msort partition searchsorted setdiff1d "
        "setxor1d sort union1d unique unique_counts unique_inverse unique_values"
    ),
    "statistics": (
        "bincount corrcoef cov histogram histogram2d histogram_bin_edges histogramdd interp median nanmedian "
        "nanpercentile nanquantile percentile quantile"
    ),
}
_SUBMODULES = ("exceptions", "fft", "lib", "linalg", "random")
_MODULES_OF_TYPES = "printing ufuncs views"  # modules that the native types ndarray and ufunc call

__getattr__, __dir__ = lazy.attributes(globals(), "walle.np", _MODULES, _SUBMODULES, hidden=_MODULES_OF_TYPES)

if not TYPE_CHECKING:  # a type checker takes the names from the imports above
    __all__ = __dir__()  # noqa: PLE0605 -- a list, made from the table

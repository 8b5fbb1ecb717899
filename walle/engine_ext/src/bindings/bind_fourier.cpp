// Binding of Fourier transforms of arrays along one axis, for walle.np.fft.
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

double scale_of(const std::optional<std::string>& norm, std::int64_t n, bool inverse) {
  const std::string name = norm.value_or("backward");
  const auto length = static_cast<double>(n);
  if (name == "ortho") return 1 / std::sqrt(length);
  if (name == "backward") return inverse ? 1 / length : 1;
  if (name == "forward") return inverse ? 1 : 1 / length;
  throw Error(ErrorKind::shape, "norm '" + name + "' is unknown; known are backward, ortho and forward");
}

Tensor with_axis_moved(const Tensor& x, std::size_t from, std::size_t to) {
  Dims shape = x.shape(), strides = x.strides();
  for (Dims* dims : {&shape, &strides}) {
    const std::int64_t moved = (*dims)[from];
    dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(from));
    dims->insert(dims->begin() + static_cast<std::ptrdiff_t>(to), moved);
  }
  return view(x, std::move(shape), std::move(strides), x.offset());
}

// Returns the first `length` numbers along the last axis, followed by zeros where there are fewer.
Tensor resized(const Tensor& x, std::int64_t length) {
  const std::int64_t given = x.shape().back();
  if (given == length) return x;
  Dims shape = x.shape();
  shape.back() = std::min(given, length);
  const Tensor kept = view(x, shape, x.strides(), x.offset());
  if (given > length) return kept;
  shape.back() = length;
  Tensor wide = Tensor::empty(x.dtype(), shape);
  computed_assign(scalar(py::int_(0), wide.dtype()), wide);
  computed_assign(kept, view(wide, kept.shape(), wide.strides(), wide.offset()));
  return wide;
}

// The transform of length n along an axis. `onesided`: of real numbers to the first n / 2 + 1 numbers, or with `inverse` back.
// Computed in the precision of the input: float32 and complex64 for the types of up to 16 bits, float32 and complex64.
Tensor fourier(py::handle value, std::optional<std::int64_t> n, std::int64_t axis, const std::optional<std::string>& norm,
               bool inverse, bool onesided) {
  Tensor x = as_tensor(value);
  if (x.ndim() == 0) throw Error(ErrorKind::shape, "a Fourier transform of an array without dimensions; it takes one or more");
  const std::size_t last = x.shape().size() - 1, at = normal_axis(axis, last + 1);
  const bool to_real = inverse && onesided;
  if (onesided && !inverse && is_complex(x.dtype()))
    throw Error(ErrorKind::dtype, "rfft of " + std::string(dtype_name(x.dtype())) + "; it takes real numbers, use fft");
  if (compute_index(x.dtype()) < 0)
    throw Error(ErrorKind::dtype, "a Fourier transform does not support " + std::string(dtype_name(x.dtype())));
  const DType complex = complex_dtype(x.dtype()), part = part_dtype(complex);
  const std::int64_t length = n.value_or(to_real ? 2 * (x.shape()[at] - 1) : x.shape()[at]);
  if (length < 1)
    throw Error(ErrorKind::shape, "a Fourier transform of length " + std::to_string(length) + "; the length must be positive");
  const double scale = scale_of(norm, length, inverse);
  x = computed_cast(resized(with_axis_moved(x, at, last), to_real ? length / 2 + 1 : length),
                    to_real || is_complex(x.dtype()) ? complex : part);
  x = computed_contiguous(x);
  const std::int64_t row = x.shape().back(), components = is_complex(x.dtype()) ? 2 : 1;
  const Tensor rows(x.storage(), part, {x.size() / row, row, components}, {row * components, components, 1},
                    x.offset() * components);
  Attributes attributes{{"inverse", std::int64_t{inverse}}, {"onesided", std::int64_t{onesided}}, {"length", length}};
  attributes.set("scale", scale);
  const Tensor inputs[] = {rows};
  Tensor result;
  if (constexpr std::int64_t kLarge = 1 << 12; x.size() < kLarge) {
    result = evaluate_one("FourierTransform", inputs, attributes);
  } else {
    result = computed_without_gil([&] { return evaluate_one("FourierTransform", inputs, attributes); });
  }
  Dims shape = x.shape();
  shape.back() = result.shape()[1];
  Dims strides = contiguous_strides(shape);
  return with_axis_moved(Tensor(result.storage(), to_real ? part : complex, std::move(shape), std::move(strides), 0), last, at);
}

}  // namespace

void bind_fourier(py::module_& module) {
  module.def("fourier", &fourier, py::arg("x"), py::arg("n"), py::arg("axis"), py::arg("norm"), py::arg("inverse"),
             py::arg("onesided"), "Return the Fourier transform along an axis.");
}

}  // namespace walle

#include "graph/scaled_weights.h"

#include "core/stop.h"
#include "operators/eager.h"

namespace walle {

namespace {

template <class T>
void multiply(const ScaledWeights& scaled, const T* from, T* to) {
  const Dims& shape = scaled.weights.shape();
  std::int64_t inner = 1;
  for (std::size_t i = scaled.axis + 1; i < shape.size(); ++i) inner *= shape[i];
  const std::int64_t channels = shape[scaled.axis], count = scaled.weights.size();
  const std::int64_t of_group = count / scaled.groups;  // elements
  run_stoppable(count / inner, 1 + inner, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t group = scaled.groups > 1 ? row * inner / of_group : 0;
      const double factor = scaled.factors[static_cast<std::size_t>(group * channels + row % channels)];
      for (std::int64_t i = row * inner; i < (row + 1) * inner; ++i)
        to[i] = static_cast<T>(static_cast<double>(from[i]) * factor);
    }
  });
}

}  // namespace

Tensor multiplied(const ScaledWeights& scaled, std::shared_ptr<Storage>* scratch) {
  const Tensor& weights = scaled.weights;
  if (weights.size() == 0) return weights;
  const bool single = weights.dtype() == DType::f32;
  Tensor result;
  if (single && scratch != nullptr) {
    const std::size_t bytes = static_cast<std::size_t>(weights.size()) * sizeof(float);
    if (*scratch == nullptr || (*scratch)->size_bytes() < bytes) *scratch = Storage::allocate(bytes);
    result = Tensor(*scratch, DType::f32, weights.shape(), contiguous_strides(weights.shape()), 0);
  } else {
    result = Tensor::empty(single ? DType::f32 : DType::f64, weights.shape());
  }
  if (single)
    multiply(scaled, weights.data<float>(), result.data<float>());
  else
    multiply(scaled, cast(weights, DType::f64).data<double>(), result.data<double>());
  return result.dtype() == weights.dtype() ? result : cast(result, weights.dtype());
}

}  // namespace walle

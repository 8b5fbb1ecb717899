// Det: determinants of square matrices, by elimination with partial pivoting. With the attribute `logarithm` the result is the
// sign and the logarithm of the absolute value, (..., 2), which cannot overflow.
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"

namespace walle {

namespace {

template <class T>
class DetStep final : public HostStep {
 public:
  explicit DetStep(const StepRequest& request)
      : n_(request.inputs[0].shape.back()), logarithm_(request.attributes.get_int("logarithm", 0) != 0) {
    count_ = element_count(request.result.shape) / (logarithm_ ? 2 : 1);
    scratch_bytes_ = static_cast<std::size_t>(n_ * n_) * sizeof(double);
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const T* matrix = reinterpret_cast<const T*>(inputs[0]);
    double* a = reinterpret_cast<double*>(scratch);
    StopPoll poll;
    for (std::int64_t b = 0; b < count_; ++b, matrix += n_ * n_) {
      run_in_blocks(n_ * n_, 1, poll, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) a[i] = static_cast<double>(matrix[i]);
      });
      const Determinant result = determinant(a, poll);
      if (poll.stopped()) return;
      T* out = reinterpret_cast<T*>(output) + (logarithm_ ? 2 * b : b);
      out[0] = static_cast<T>(logarithm_ ? result.sign : result.value);
      if (logarithm_) out[1] = static_cast<T>(result.logarithm);
    }
  }

 private:
  struct Determinant {
    double value = 1, sign = 1, logarithm = 0;

    void negate() noexcept {
      value = -value;
      sign = -sign;
    }
    void multiply(double factor) noexcept {
      value *= factor;
      sign = factor == 0 ? 0 : factor < 0 ? -sign : factor > 0 ? sign : factor;
      logarithm += std::log(std::fabs(factor));
    }
  };

  Determinant determinant(double* a, StopPoll& poll) const noexcept {
    Determinant result;
    for (std::int64_t column = 0; column < n_; ++column) {
      std::int64_t pivot = column;
      for (std::int64_t row = column + 1; row < n_; ++row)
        if (std::fabs(a[row * n_ + column]) > std::fabs(a[pivot * n_ + column])) pivot = row;
      if (pivot != column) {
        for (std::int64_t i = 0; i < n_; ++i) std::swap(a[pivot * n_ + i], a[column * n_ + i]);
        result.negate();
      }
      const double pivot_value = a[column * n_ + column];
      result.multiply(pivot_value);
      if (pivot_value == 0) return result;
      for (std::int64_t row = column + 1; row < n_; ++row) {
        if (!poll.proceed(n_ - column)) return result;
        const double factor = a[row * n_ + column] / pivot_value;
        for (std::int64_t i = column; i < n_; ++i) a[row * n_ + i] -= factor * a[column * n_ + i];
      }
    }
    return result;
  }

  std::int64_t n_, count_;
  bool logarithm_;
};

}  // namespace

TensorType infer_det(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims& shape = operands[0].shape;
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2] || shape.back() > (std::int64_t{1} << 20))
    throw Error(ErrorKind::shape,
                "Det of shape " + to_string(shape) + "; the last two dimensions must be equal and at most 2^20");
  if (operands[0].dtype != DType::f32 && operands[0].dtype != DType::f64 && !is_half(operands[0].dtype))
    throw Error(ErrorKind::dtype,
                "Det does not support dtype " + std::string(dtype_name(operands[0].dtype)) + "; convert to float32 or float64");
  Dims result(shape.begin(), shape.end() - 2);
  if (attributes.get_int("logarithm", 0) != 0) result.push_back(2);
  return {operands[0].dtype, result};
}

std::unique_ptr<HostStep> make_det(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    if (request.result.dtype == DType::f64) return std::make_unique<DetStep<double>>(request);
    return std::make_unique<DetStep<float>>(request);
  });
}

}  // namespace walle

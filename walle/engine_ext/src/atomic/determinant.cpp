// Det: determinants of square matrices, by elimination with partial pivoting.
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"

namespace walle {

namespace {

template <class T>
class DetStep final : public Step {
 public:
  explicit DetStep(const StepRequest& request) : count_(element_count(request.result.shape)), n_(request.inputs[0].shape.back()) {
    scratch_bytes_ = static_cast<std::size_t>(n_ * n_) * sizeof(double);
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const T* from = reinterpret_cast<const T*>(inputs[0]);
    double* a = reinterpret_cast<double*>(scratch);
    for (std::int64_t b = 0; b < count_; ++b, from += n_ * n_) {
      for (std::int64_t i = 0; i < n_ * n_; ++i) a[i] = static_cast<double>(from[i]);
      reinterpret_cast<T*>(output)[b] = static_cast<T>(determinant(a));
    }
  }

 private:
  double determinant(double* a) const noexcept {
    double product = 1;
    for (std::int64_t column = 0; column < n_; ++column) {
      std::int64_t pivot = column;
      for (std::int64_t row = column + 1; row < n_; ++row)
        if (std::fabs(a[row * n_ + column]) > std::fabs(a[pivot * n_ + column])) pivot = row;
      if (pivot != column) {
        for (std::int64_t i = 0; i < n_; ++i) std::swap(a[pivot * n_ + i], a[column * n_ + i]);
        product = -product;
      }
      const double head = a[column * n_ + column];
      product *= head;
      if (head == 0) return product;
      for (std::int64_t row = column + 1; row < n_; ++row) {
        const double factor = a[row * n_ + column] / head;
        for (std::int64_t i = column; i < n_; ++i) a[row * n_ + i] -= factor * a[column * n_ + i];
      }
    }
    return product;
  }

  std::int64_t count_, n_;
};

}  // namespace

TensorType infer_det(std::span<const Operand> operands, const Attributes&) {
  const Dims& shape = operands[0].shape;
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2] || shape.back() > (std::int64_t{1} << 20))
    throw Error(ErrorKind::shape, "Det of " + to_string(shape) + "; the last two dimensions must be equal");
  if (operands[0].dtype != DType::f32 && operands[0].dtype != DType::f64 && !is_half(operands[0].dtype))
    throw Error(ErrorKind::dtype, "Det takes no " + std::string(dtype_name(operands[0].dtype)));
  return {operands[0].dtype, Dims(shape.begin(), shape.end() - 2)};
}

std::unique_ptr<Step> make_det(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<Step> {
    if (request.result.dtype == DType::f64) return std::make_unique<DetStep<double>>(request);
    return std::make_unique<DetStep<float>>(request);
  });
}

}  // namespace walle

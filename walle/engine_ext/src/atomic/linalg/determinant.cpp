// Det: determinants of square matrices, by elimination with partial pivoting; with the attribute `logarithm` their signs and the
// logarithms of their sizes, (..., 2), which no product leaves.
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"

namespace walle {

namespace {

template <class T>
class DetStep final : public Step {
 public:
  explicit DetStep(const StepRequest& request)
      : n_(request.inputs[0].shape.back()), logarithm_(request.attributes.get_int("logarithm", 0) != 0) {
    count_ = element_count(request.result.shape) / (logarithm_ ? 2 : 1);
    scratch_bytes_ = static_cast<std::size_t>(n_ * n_) * sizeof(double);
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const T* from = reinterpret_cast<const T*>(inputs[0]);
    double* a = reinterpret_cast<double*>(scratch);
    for (std::int64_t b = 0; b < count_; ++b, from += n_ * n_) {
      for (std::int64_t i = 0; i < n_ * n_; ++i) a[i] = static_cast<double>(from[i]);
      const Size size = determinant(a);
      T* to = reinterpret_cast<T*>(output) + (logarithm_ ? 2 * b : b);
      to[0] = static_cast<T>(logarithm_ ? size.sign : size.product);
      if (logarithm_) to[1] = static_cast<T>(size.logarithm);
    }
  }

 private:
  struct Size {
    double product = 1, sign = 1, logarithm = 0;

    void turn() noexcept {
      product = -product;
      sign = -sign;
    }
    void add(double factor) noexcept {
      product *= factor;
      sign = factor == 0 ? 0 : factor < 0 ? -sign : factor > 0 ? sign : factor;
      logarithm += std::log(std::fabs(factor));
    }
  };

  Size determinant(double* a) const noexcept {
    Size size;
    for (std::int64_t column = 0; column < n_; ++column) {
      std::int64_t pivot = column;
      for (std::int64_t row = column + 1; row < n_; ++row)
        if (std::fabs(a[row * n_ + column]) > std::fabs(a[pivot * n_ + column])) pivot = row;
      if (pivot != column) {
        for (std::int64_t i = 0; i < n_; ++i) std::swap(a[pivot * n_ + i], a[column * n_ + i]);
        size.turn();
      }
      const double head = a[column * n_ + column];
      size.add(head);
      if (head == 0) return size;
      for (std::int64_t row = column + 1; row < n_; ++row) {
        const double factor = a[row * n_ + column] / head;
        for (std::int64_t i = column; i < n_; ++i) a[row * n_ + i] -= factor * a[column * n_ + i];
      }
    }
    return size;
  }

  std::int64_t n_, count_;
  bool logarithm_;
};

}  // namespace

TensorType infer_det(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims& shape = operands[0].shape;
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2] || shape.back() > (std::int64_t{1} << 20))
    throw Error(ErrorKind::shape, "Det of " + to_string(shape) + "; the last two dimensions must be equal");
  if (operands[0].dtype != DType::f32 && operands[0].dtype != DType::f64 && !is_half(operands[0].dtype))
    throw Error(ErrorKind::dtype, "Det takes no " + std::string(dtype_name(operands[0].dtype)));
  Dims result(shape.begin(), shape.end() - 2);
  if (attributes.get_int("logarithm", 0) != 0) result.push_back(2);
  return {operands[0].dtype, result};
}

std::unique_ptr<Step> make_det(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<Step> {
    if (request.result.dtype == DType::f64) return std::make_unique<DetStep<double>>(request);
    return std::make_unique<DetStep<float>>(request);
  });
}

}  // namespace walle

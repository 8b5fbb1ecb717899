// Dense linear algebra of square and rectangular matrices: Solve, Cholesky, Qr, Eigh, Svd. All of it is computed in float64 and
// rounded once. A decomposition's parts are rows of one result, which walle.np takes apart.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/linalg/factors.h"

namespace walle {

namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 20;

DType checked(const Operand& a, const char* op, bool square) {
  if (a.shape.size() < 2 || (square && a.shape.back() != a.shape[a.shape.size() - 2]) || a.shape.back() > kMostRows ||
      a.shape[a.shape.size() - 2] > kMostRows)
    throw Error(ErrorKind::shape, std::string(op) + " of shape " + to_string(a.shape) + "; it takes " +
                                      (square ? "square matrices" : "matrices") + " in the last two dimensions");
  if (a.dtype != DType::f32 && a.dtype != DType::f64)
    throw Error(ErrorKind::dtype, std::string(op) + " takes no " + std::string(dtype_name(a.dtype)));
  return a.dtype;
}

Dims with_matrix(const Dims& shape, std::int64_t rows, std::int64_t columns) {
  Dims result(shape.begin(), shape.end() - 2);
  result.push_back(rows);
  result.push_back(columns);
  return result;
}

// A stack of matrices, one after the other: each is widened into scratch, worked on, and the result rounded.
template <class T>
class StackStep final : public Step {
 public:
  using Work = const char* (*)(const Factors& sizes, const double* a, const double* b, double* out, double* work) noexcept;

  StackStep(const StepRequest& request, Work work, Factors sizes, std::int64_t out_size, std::int64_t work_size)
      : work_(work), sizes_(sizes), out_size_(out_size), work_size_(work_size) {
    const Dims& shape = request.result.shape;
    batch_ = element_count(Dims(shape.begin(), shape.end() - 2));
    a_size_ = sizes.m * sizes.n;
    b_size_ = request.inputs.size() > 1 ? sizes.n * sizes.k : 0;
    scratch_bytes_ = static_cast<std::size_t>(a_size_ + b_size_ + out_size_ + work_size_) * sizeof(double);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* a = reinterpret_cast<double*>(scratch);
    double *b = a + a_size_, *out = b + b_size_, *work = out + out_size_;
    for (std::int64_t i = 0; i < batch_; ++i) {
      widen(inputs[0], i * a_size_, a, a_size_);
      if (b_size_ > 0) widen(inputs[1], i * b_size_, b, b_size_);
      if (const char* fault = work_(sizes_, a, b, out, work)) return fail(fault);
      T* to = reinterpret_cast<T*>(output) + i * out_size_;
      for (std::int64_t j = 0; j < out_size_; ++j) to[j] = static_cast<T>(out[j]);
    }
  }

 private:
  static void widen(const std::byte* from, std::int64_t first, double* to, std::int64_t count) noexcept {
    const T* numbers = reinterpret_cast<const T*>(from) + first;
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(numbers[i]);
  }

  Work work_;
  Factors sizes_;
  std::int64_t out_size_, work_size_, batch_, a_size_, b_size_;
};

std::unique_ptr<Step> stack(const StepRequest& request, StackStep<double>::Work work, const Factors& sizes,
                            std::int64_t work_size) {
  const Dims& shape = request.result.shape;
  const std::int64_t out_size = shape.back() * shape[shape.size() - 2];
  if (request.result.dtype == DType::f64) return std::make_unique<StackStep<double>>(request, work, sizes, out_size, work_size);
  return std::make_unique<StackStep<float>>(request, work, sizes, out_size, work_size);
}

bool with_vectors(const Attributes& attributes) { return attributes.get_int("vectors", 1) != 0; }

Factors sizes_of(const Dims& shape) {
  const std::int64_t m = shape[shape.size() - 2], n = shape.back();
  return {m, n, std::min(m, n)};
}

}  // namespace

// Inputs a (..., n, n) and b (..., n, k) with the same leading dimensions. Output x (..., n, k) with a @ x = b.
TensorType infer_solve(std::span<const Operand> operands, const Attributes&) {
  const DType dtype = checked(operands[0], "Solve", true);
  const Dims &a = operands[0].shape, &b = operands[1].shape;
  if (operands[1].absent || operands[1].dtype != dtype || b.size() != a.size() || !std::equal(b.begin(), b.end() - 1, a.begin()))
    throw Error(ErrorKind::shape, "Solve of shapes " + to_string(a) + " and " + to_string(b));
  return {dtype, b};
}
std::unique_ptr<Step> make_solve(const StepRequest& request) {
  Factors sizes = sizes_of(request.inputs[0].shape);
  sizes.k = request.inputs[1].shape.back();
  return stack(request, &solve, sizes, sizes.n * sizes.n);
}

// Output l (..., n, n), lower, with l @ l.T = a, of which the lower triangle is read.
TensorType infer_cholesky(std::span<const Operand> operands, const Attributes&) {
  return {checked(operands[0], "Cholesky", true), operands[0].shape};
}
std::unique_ptr<Step> make_cholesky(const StepRequest& request) {
  return stack(request, &cholesky, sizes_of(request.inputs[0].shape), 0);
}

// With k = min(m, n), or m where `complete`: m rows of q in the first k columns, then k rows of r; (..., m + k, max(n, k)).
TensorType infer_qr(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked(operands[0], "Qr", false);
  Factors sizes = sizes_of(operands[0].shape);
  if (attributes.get_int("complete", 0) != 0) sizes.k = sizes.m;
  return {dtype, with_matrix(operands[0].shape, sizes.m + sizes.k, std::max(sizes.n, sizes.k))};
}
std::unique_ptr<Step> make_qr(const StepRequest& request) {
  Factors sizes = sizes_of(request.inputs[0].shape);
  if (request.attributes.get_int("complete", 0) != 0) sizes.k = sizes.m;
  return stack(request, &qr, sizes, sizes.m * sizes.n + sizes.k + sizes.m * sizes.k);
}

// Of a symmetric matrix, of which the lower triangle is read: a row of eigenvalues in ascending order, then n rows whose columns
// are the eigenvectors; (..., n + 1, n). The first row alone where the attribute `vectors` is 0.
TensorType infer_eigh(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked(operands[0], "Eigh", true);
  const std::int64_t n = operands[0].shape.back();
  return {dtype, with_matrix(operands[0].shape, with_vectors(attributes) ? n + 1 : 1, n)};
}
std::unique_ptr<Step> make_eigh(const StepRequest& request) {
  const Factors sizes = sizes_of(request.inputs[0].shape);
  return stack(request, with_vectors(request.attributes) ? &eigh : &eigenvalues, sizes, sizes.n * sizes.n + 3 * sizes.n);
}

// With k = min(m, n): a row of singular values in descending order, m rows of u, n rows of v; (..., 1 + m + n, k). The
// first row alone where the attribute `vectors` is 0.
TensorType infer_svd(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked(operands[0], "Svd", false);
  const Factors sizes = sizes_of(operands[0].shape);
  return {dtype, with_matrix(operands[0].shape, with_vectors(attributes) ? 1 + sizes.m + sizes.n : 1, sizes.k)};
}
std::unique_ptr<Step> make_svd(const StepRequest& request) {
  const Factors sizes = sizes_of(request.inputs[0].shape);
  if (!with_vectors(request.attributes))
    return stack(request, &singular_values, sizes, sizes.m * sizes.n + 7 * sizes.k + std::max(sizes.m, sizes.n));
  return stack(request, &svd, sizes, sizes.m * sizes.n + sizes.k * sizes.k + 2 * sizes.k);
}

}  // namespace walle

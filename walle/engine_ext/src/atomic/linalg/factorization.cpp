// Operators of dense linear algebra: Solve, Cholesky, Qr, Eigh, Svd. They compute in float64 and round once. The factors of a
// decomposition are rows of one result, which walle.np splits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/linalg/factors.h"

namespace walle {

namespace {

constexpr std::int64_t kMaxRows = std::int64_t{1} << 20;

// Returns the operand's dtype. Throws Error (shape, dtype) where it is not a stack of (square) matrices of floats.
DType checked_dtype(const Operand& a, const char* op, bool square) {
  if (a.shape.size() < 2 || (square && a.shape.back() != a.shape[a.shape.size() - 2]) || a.shape.back() > kMaxRows ||
      a.shape[a.shape.size() - 2] > kMaxRows)
    throw Error(ErrorKind::shape, std::string(op) + " of shape " + to_string(a.shape) +
                                      "; the last two dimensions must be those of " + (square ? "square matrices" : "matrices") +
                                      " of at most 2^20 rows");
  if (a.dtype != DType::f32 && a.dtype != DType::f64)
    throw Error(ErrorKind::dtype, std::string(op) + " does not support dtype " + std::string(dtype_name(a.dtype)) +
                                      "; convert to float32 or float64");
  return a.dtype;
}

Dims with_matrix(const Dims& shape, std::int64_t rows, std::int64_t columns) {
  Dims result(shape.begin(), shape.end() - 2);
  result.push_back(rows);
  result.push_back(columns);
  return result;
}

// Applies an algorithm to a stack of matrices one by one: each is converted to float64 in scratch memory and its result rounded.
template <class T>
class StackStep final : public HostStep {
 public:
  using Algorithm = const char* (*)(const MatrixSizes& sizes, const double* a, const double* b, double* out, double* work,
                                    StopPoll& poll) noexcept;

  StackStep(const StepRequest& request, Algorithm compute, MatrixSizes sizes, std::int64_t out_size, std::int64_t work_size)
      : algorithm_(compute), sizes_(sizes), out_size_(out_size), work_size_(work_size) {
    const Dims& shape = request.result.shape;
    batch_ = element_count(Dims(shape.begin(), shape.end() - 2));
    a_size_ = sizes.m * sizes.n;
    b_size_ = request.inputs.size() > 1 ? sizes.n * sizes.k : 0;
    scratch_bytes_ = static_cast<std::size_t>(a_size_ + b_size_ + out_size_ + work_size_) * sizeof(double);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* a = reinterpret_cast<double*>(scratch);
    double *b = a + a_size_, *out = b + b_size_, *work = out + out_size_;
    StopPoll poll;
    for (std::int64_t i = 0; i < batch_; ++i) {
      convert(reinterpret_cast<const T*>(inputs[0]) + i * a_size_, a, a_size_, poll);
      if (b_size_ > 0) convert(reinterpret_cast<const T*>(inputs[1]) + i * b_size_, b, b_size_, poll);
      if (poll.stopped()) return;
      if (const char* fault = algorithm_(sizes_, a, b, out, work, poll)) return fail(fault);
      if (poll.stopped()) return;
      convert(out, reinterpret_cast<T*>(output) + i * out_size_, out_size_, poll);
    }
  }

 private:
  template <class From, class To>
  static void convert(const From* from, To* to, std::int64_t count, StopPoll& poll) noexcept {
    run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) to[i] = static_cast<To>(from[i]);
    });
  }

  Algorithm algorithm_;
  MatrixSizes sizes_;
  std::int64_t out_size_, work_size_, batch_, a_size_, b_size_;
};

std::unique_ptr<HostStep> stack(const StepRequest& request, StackStep<double>::Algorithm algorithm, const MatrixSizes& sizes,
                                std::int64_t work_size) {
  const Dims& shape = request.result.shape;
  const std::int64_t out_size = shape.back() * shape[shape.size() - 2];
  if (request.result.dtype == DType::f64)
    return std::make_unique<StackStep<double>>(request, algorithm, sizes, out_size, work_size);
  return std::make_unique<StackStep<float>>(request, algorithm, sizes, out_size, work_size);
}

bool with_vectors(const Attributes& attributes) { return attributes.get_int("vectors", 1) != 0; }

MatrixSizes sizes_of(const Dims& shape) {
  const std::int64_t m = shape[shape.size() - 2], n = shape.back();
  return {m, n, std::min(m, n)};
}

}  // namespace

// Inputs: a (..., n, n) and b (..., n, k) with the same leading dimensions. Output: x (..., n, k) with a @ x = b.
TensorType infer_solve(std::span<const Operand> operands, const Attributes&) {
  const DType dtype = checked_dtype(operands[0], "Solve", true);
  const Dims &a = operands[0].shape, &b = operands[1].shape;
  if (operands[1].absent || operands[1].dtype != dtype || b.size() != a.size() || !std::equal(b.begin(), b.end() - 1, a.begin()))
    throw Error(ErrorKind::shape, "Solve of shapes " + to_string(a) + " and " + to_string(b) +
                                      "; b must have the dtype and all dimensions of a but the last");
  return {dtype, b};
}
std::unique_ptr<HostStep> make_solve(const StepRequest& request) {
  MatrixSizes sizes = sizes_of(request.inputs[0].shape);
  sizes.k = request.inputs[1].shape.back();
  return stack(request, &solve, sizes, sizes.n * sizes.n);
}

// Output: l (..., n, n), lower triangular, with l @ l.T = a; only the lower triangle of a is read.
TensorType infer_cholesky(std::span<const Operand> operands, const Attributes&) {
  return {checked_dtype(operands[0], "Cholesky", true), operands[0].shape};
}
std::unique_ptr<HostStep> make_cholesky(const StepRequest& request) {
  return stack(request, &cholesky, sizes_of(request.inputs[0].shape), 0);
}

// Output: (..., m + k, max(n, k)), with k = min(m, n), or m if the attribute `complete` is set: m rows of q in the first k
// columns, then k rows of r.
TensorType infer_qr(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked_dtype(operands[0], "Qr", false);
  MatrixSizes sizes = sizes_of(operands[0].shape);
  if (attributes.get_int("complete", 0) != 0) sizes.k = sizes.m;
  return {dtype, with_matrix(operands[0].shape, sizes.m + sizes.k, std::max(sizes.n, sizes.k))};
}
std::unique_ptr<HostStep> make_qr(const StepRequest& request) {
  MatrixSizes sizes = sizes_of(request.inputs[0].shape);
  if (request.attributes.get_int("complete", 0) != 0) sizes.k = sizes.m;
  return stack(request, &qr, sizes, sizes.m * sizes.n + sizes.k + sizes.m * sizes.k);
}

// Input: a symmetric matrix, of which only the lower triangle is read. Output: (..., n + 1, n), a row of eigenvalues in ascending
// order, then n rows whose columns are the eigenvectors; only the first row if the attribute `vectors` is 0.
TensorType infer_eigh(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked_dtype(operands[0], "Eigh", true);
  const std::int64_t n = operands[0].shape.back();
  return {dtype, with_matrix(operands[0].shape, with_vectors(attributes) ? n + 1 : 1, n)};
}
std::unique_ptr<HostStep> make_eigh(const StepRequest& request) {
  const MatrixSizes sizes = sizes_of(request.inputs[0].shape);
  return stack(request, with_vectors(request.attributes) ? &eigh : &eigenvalues, sizes, sizes.n * sizes.n + 3 * sizes.n);
}

// Output: (..., 1 + m + n, k), with k = min(m, n): a row of singular values in descending order, m rows of u, n rows of v; only
// the first row if the attribute `vectors` is 0.
TensorType infer_svd(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = checked_dtype(operands[0], "Svd", false);
  const MatrixSizes sizes = sizes_of(operands[0].shape);
  return {dtype, with_matrix(operands[0].shape, with_vectors(attributes) ? 1 + sizes.m + sizes.n : 1, sizes.k)};
}
std::unique_ptr<HostStep> make_svd(const StepRequest& request) {
  const MatrixSizes sizes = sizes_of(request.inputs[0].shape);
  if (!with_vectors(request.attributes))
    return stack(request, &singular_values, sizes, sizes.m * sizes.n + 7 * sizes.k + std::max(sizes.m, sizes.n));
  return stack(request, &svd, sizes, sizes.m * sizes.n + sizes.k * sizes.k + 2 * sizes.k);
}

}  // namespace walle

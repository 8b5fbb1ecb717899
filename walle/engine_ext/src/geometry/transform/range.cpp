// Range: evenly spaced numbers, a constant of the plan; if they depend on an input's value, the session plans with that value.
#include <cmath>

#include "core/small_float.h"
#include "core/stop.h"
#include "geometry/transform/transform.h"

namespace walle {

namespace {

const Tensor& known(std::span<const Operand> operands, std::size_t index, const char* what) {
  if (index >= operands.size() || operands[index].absent) throw Error(ErrorKind::model, std::string(what) + " is missing");
  if (operands[index].constant == nullptr) throw ValueNeeded(index, what);
  if (!operands[index].constant->contiguous()) throw Error(ErrorKind::shape, std::string(what) + " must be contiguous");
  return *operands[index].constant;
}

// Call f(T{}) with the C++ type of a dtype that Range supports.
template <class F>
auto typed(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i16: return f(std::int16_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::i64: return f(std::int64_t{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat{});
    default: throw Error(ErrorKind::dtype, "Range does not support " + std::string(dtype_name(dtype)));
  }
}

}  // namespace

// start, start + delta, ... up to but excluding limit, each computed in double. `stash_type` is the precision in which ONNX adds
// up 16-bit numbers: float32 or float64.
std::vector<Movement> make_range(std::span<const Operand> operands, const Attributes& attributes, int) {
  const DType precision = target_dtype({{"to", attributes.get_int("stash_type", 1)}});
  if (precision != DType::f32 && precision != DType::f64)
    throw Error(ErrorKind::unsupported,
                "Range with stash_type " + std::string(dtype_name(precision)) + "; supported are float32 and float64");
  const Tensor &start = known(operands, 0, "'start'"), &limit = known(operands, 1, "'limit'"),
               &delta = known(operands, 2, "'delta'");
  if (start.size() != 1 || limit.size() != 1 || delta.size() != 1) throw Error(ErrorKind::shape, "Range takes three numbers");
  if (limit.dtype() != start.dtype() || delta.dtype() != start.dtype())
    throw Error(ErrorKind::dtype, "Range takes numbers of one dtype");
  return typed(start.dtype(), [&]<class T>(T) -> std::vector<Movement> {
    using Wide = std::conditional_t<std::is_integral_v<T>, __int128, double>;
    const auto number = [](const Tensor& tensor) { return static_cast<Wide>(*reinterpret_cast<const T*>(tensor.raw())); };
    const Wide first = number(start), last = number(limit), step = number(delta);
    if (step == 0 || step != step) throw Error(ErrorKind::shape, "Range with a delta of 0");
    Wide count = 0;
    if constexpr (!std::is_integral_v<T>)
      count = std::ceil((last - first) / step);
    else
      count = (last - first + step + (step > 0 ? -1 : 1)) / step;
    if (!(count > 0)) count = 0;
    if (count > static_cast<Wide>(storage_limit() / sizeof(T)))
      throw Error(ErrorKind::shape, "the elements of Range need more memory than the machine has");
    Tensor result = Tensor::empty(start.dtype(), {static_cast<std::int64_t>(count)});
    T* values = reinterpret_cast<T*>(result.raw());
    run_stoppable(result.size(), 2, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] = T(first + static_cast<Wide>(i) * step);
    });
    const std::int64_t size = result.size(), one = 1;
    Movement movement{start.dtype(), result.shape(), {}, {}};
    if (size > 0) movement.regions.push_back(Region::make(Movement::kFill, {&size, 1}, {&one, 1}, 0, {&one, 1}, 0, size, size));
    movement.fill = std::move(result);
    return {std::move(movement)};
  });
}

}  // namespace walle

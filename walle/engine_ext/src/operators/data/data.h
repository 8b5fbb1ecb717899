// Helpers for operators whose output shapes depend on data.
#pragma once
#include "core/small_float.h"
#include "core/stop.h"
#include "operators/op.h"

namespace walle {

// Call f with a pointer to the elements as numbers of their type (bools as uint8).
template <class F>
auto with_elements(const Tensor& tensor, F&& f) {
  switch (tensor.dtype()) {
    case DType::f32: return f(tensor.data<const float>());
    case DType::f64: return f(tensor.data<const double>());
    case DType::f16: return f(tensor.data<const Half>());
    case DType::bf16: return f(tensor.data<const BFloat>());
    case DType::i8: return f(tensor.data<const std::int8_t>());
    case DType::i16: return f(tensor.data<const std::int16_t>());
    case DType::i32: return f(tensor.data<const std::int32_t>());
    case DType::i64: return f(tensor.data<const std::int64_t>());
    case DType::u8:
    case DType::b8: return f(tensor.data<const std::uint8_t>());
    case DType::u16: return f(tensor.data<const std::uint16_t>());
    case DType::u32: return f(tensor.data<const std::uint32_t>());
    case DType::u64: return f(tensor.data<const std::uint64_t>());
    default:
      throw Error(ErrorKind::dtype,
                  "an operator whose output shape depends on data does not support " + std::string(dtype_name(tensor.dtype())));
  }
}

// Polls the stop in loops of many short steps, as comparisons of a sort are, and throws WorkStopped out of them; the order of
// such a sort is then not used. The usual case is one subtraction.
class SortPoll {
 public:
  void proceed(std::int64_t elements) {
    if ((left_ -= elements) < 0) [[unlikely]]
      poll();
  }

 private:
  [[gnu::noinline, gnu::cold]] void poll() {
    left_ = StopPoll::kInterval / 4;
    throw_if_stopped();
  }

  std::int64_t left_ = StopPoll::kInterval / 4;
};

// Return the slices `index` along `axis`, concatenated.
Tensor take_slices(const Tensor& x, std::size_t axis, const Dims& index);
// Return a view of one dimension.
inline Tensor flat(const Tensor& x) { return Tensor(x.storage(), x.dtype(), {x.size()}, {1}, x.offset()); }

}  // namespace walle

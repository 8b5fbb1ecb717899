// Ordering operators: the greatest or least k along an axis, and insertion positions of values in a sorted vector. NaN counts as
// greater than all numbers.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "atomic/conversion.h"
#include "atomic/radix.h"
#include "core/small_float.h"

namespace walle {

namespace {

// Call f with a null pointer of the C++ type that holds a dtype; float16 and bfloat16 as Half and BFloat.
template <class F>
void with_sorted_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<const float*>(nullptr));
    case DType::f64: return f(static_cast<const double*>(nullptr));
    case DType::f16: return f(static_cast<const Half*>(nullptr));
    case DType::bf16: return f(static_cast<const BFloat*>(nullptr));
    case DType::i8: return f(static_cast<const std::int8_t*>(nullptr));
    case DType::i16: return f(static_cast<const std::int16_t*>(nullptr));
    case DType::i32: return f(static_cast<const std::int32_t*>(nullptr));
    case DType::i64: return f(static_cast<const std::int64_t*>(nullptr));
    case DType::u8:
    case DType::b8: return f(static_cast<const std::uint8_t*>(nullptr));
    case DType::u16: return f(static_cast<const std::uint16_t*>(nullptr));
    case DType::u32: return f(static_cast<const std::uint32_t*>(nullptr));
    case DType::u64: return f(static_cast<const std::uint64_t*>(nullptr));
    default: throw Error(ErrorKind::dtype, "no order of " + std::string(dtype_name(dtype)));
  }
}

// Compare: -1, 0 or 1.
template <class T>
int compare(T a, T b) noexcept {
  if (a < b) return -1;
  if (b < a) return 1;
  return a == b ? 0 : static_cast<int>(a != a) - static_cast<int>(b != b);  // NaN comes last
}

template <class T>
class TopStep final : public HostStep {
 public:
  TopStep(const StepRequest& request, bool values) : values_(values), largest_(request.attributes.get_int("largest", 1) != 0) {
    const Layout& input = request.inputs[0];
    const std::size_t axis = normal_axis(request.attributes.get_int("axis", -1), input.shape.size());
    length_ = input.shape[axis];
    count_ = request.result.shape[axis];
    stride_ = input.strides[axis];
    const Dims out = contiguous_strides(request.result.shape);
    out_stride_ = out[axis];
    Dims shape = input.shape, in_strides = input.strides, out_strides = out;
    for (Dims* dims : {&shape, &in_strides, &out_strides}) dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(axis));
    others_ = LoopNest<2>::make(shape, {in_strides, out_strides}, {sizeof(T), item_size(request.result.dtype)});
    // For k above an eighth of a long axis, or a k whose heap the caches do not hold, a full radix sort is cheaper.
    constexpr std::int64_t kShort = 32, kLargeHeap = std::int64_t{1} << 16;
    whole_ = length_ > kShort && (count_ > length_ / 8 || count_ > kLargeHeap) && length_ < (std::int64_t{1} << 32);
    scratch_bytes_ =
        whole_ ? radix_scratch_bytes<T>(length_, !values_) : static_cast<std::size_t>(length_) * sizeof(std::int64_t);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    if (whole_) return run_whole(inputs[0], output, scratch);
    auto* places = reinterpret_cast<std::int64_t*>(scratch);
    constexpr std::int64_t kCompared = 16;  // elements whose time the comparisons of one element take
    const std::int64_t at_once = std::max<std::int64_t>(8 * count_, 1 << 16);
    StopPoll poll;
    others_.walk({inputs[0], output}, 0, [&](const auto& at) {
      const auto* from = reinterpret_cast<const T*>(at[0]);
      std::iota(places, places + count_, std::int64_t{0});
      // The first of a block and of those before it; a line of a few elements is one block.
      for (std::int64_t first = count_, last = 0; last < length_; first = last) {
        last = std::min(first + at_once, length_);
        if (!poll.proceed((last - first + count_) * kCompared)) return false;
        std::iota(places + count_, places + count_ + (last - first), first);
        std::partial_sort(places, places + count_, places + count_ + (last - first), [&](std::int64_t a, std::int64_t b) {
          const int order = compare<T>(from[a * stride_], from[b * stride_]);
          return order != 0 ? (order > 0) == largest_ : a < b;
        });
      }
      for (std::int64_t i = 0; i < count_; ++i) {
        if (values_)
          reinterpret_cast<T*>(at[1])[i * out_stride_] = from[places[i] * stride_];
        else
          reinterpret_cast<std::int64_t*>(at[1])[i * out_stride_] = places[i];
      }
      return true;
    });
  }

 private:
  void run_whole(std::byte* input, std::byte* output, std::byte* scratch) const noexcept {
    StopPoll poll;
    others_.walk({input, output}, 0, [&](const auto& at) {
      const auto* from = reinterpret_cast<const T*>(at[0]);
      if (values_)
        radix_sort<T>(from, stride_, length_, largest_, scratch, poll, [&](std::int64_t i, T value) {
          if (i < count_) reinterpret_cast<T*>(at[1])[i * out_stride_] = value;
        });
      else
        radix_order<T>(from, stride_, length_, largest_, scratch, poll, [&](std::int64_t i, std::int64_t place) {
          if (i < count_) reinterpret_cast<std::int64_t*>(at[1])[i * out_stride_] = place;
        });
      return !poll.stopped();
    });
  }

  LoopNest<2> others_;
  std::int64_t length_, count_, stride_, out_stride_;
  bool values_, largest_, whole_ = false;
};

// out[i]: the number of elements of the line less than values[i] (`right`: less than or equal to it).
template <class T>
class SearchStep final : public HostStep {
 public:
  explicit SearchStep(const StepRequest& request)
      : length_(request.inputs[0].shape[0]),
        count_(element_count(request.result.shape)),
        right_(request.attributes.get_int("right", 0) != 0) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* values = reinterpret_cast<const T*>(inputs[1]);
    auto* out = reinterpret_cast<std::int64_t*>(output);
    if (right_)
      search<true>(reinterpret_cast<const T*>(inputs[0]), values, out);
    else
      search<false>(reinterpret_cast<const T*>(inputs[0]), values, out);
  }

 private:
  static constexpr std::int64_t kProbe = 4;  // elements whose time one step of a search takes

  // Without branches, so that several searches overlap.
  template <bool right>
  void search(const T* line, const T* values, std::int64_t* out) const noexcept {
    const std::int64_t steps = std::bit_width(static_cast<std::uint64_t>(length_)) + 1;
    StopPoll poll;
    run_in_blocks(count_, kProbe * steps, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const T value = values[i];
        std::int64_t base = 0, rest = length_;
        while (rest > 1) {
          const std::int64_t half = rest / 2;
          base += half & -static_cast<std::int64_t>(before<right>(line[base + half - 1], value));
          rest -= half;
        }
        out[i] = base + (rest == 1 && before<right>(line[base], value) ? 1 : 0);
      }
    });
  }
  template <bool right>
  static bool before(T a, T b) noexcept {
    const bool nan_a = a != a, nan_b = b != b;
    if constexpr (right) return (a <= b) | nan_b;
    return (a < b) | (!nan_a & nan_b);
  }

  std::int64_t length_, count_;
  bool right_;
};

TensorType infer_top(std::span<const Operand> operands, const Attributes& attributes) {
  TensorType result{operands[0].dtype, operands[0].shape};
  const std::size_t axis = normal_axis(attributes.get_int("axis", -1), result.shape.size());
  const std::int64_t k = attributes.get_int("k", 0);
  if (k < 0 || k > result.shape[axis])
    throw Error(ErrorKind::shape, "the first " + std::to_string(k) + " of an axis of " + std::to_string(result.shape[axis]));
  with_sorted_type(result.dtype, [](auto*) {});
  result.shape[axis] = k;
  return result;
}

std::unique_ptr<HostStep> make_top(const StepRequest& request, bool values) {
  std::unique_ptr<HostStep> step;
  with_sorted_type(request.inputs[0].dtype, [&](auto* type) {
    step = std::make_unique<TopStep<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>>(request, values);
  });
  return step;
}

}  // namespace

TensorType infer_top_indices(std::span<const Operand> operands, const Attributes& attributes) {
  return {DType::i64, infer_top(operands, attributes).shape};
}
TensorType infer_top_values(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_top(operands, attributes);
}
TensorType infer_search_sorted(std::span<const Operand> operands, const Attributes&) {
  if (operands[1].absent || operands[1].dtype != operands[0].dtype || operands[0].shape.size() != 1)
    throw Error(ErrorKind::shape, "SearchSorted takes a vector and values of its dtype, not " +
                                      std::string(dtype_name(operands[0].dtype)) + " of shape " + to_string(operands[0].shape));
  with_sorted_type(operands[0].dtype, [](auto*) {});
  return {DType::i64, operands[1].shape};
}
std::unique_ptr<HostStep> make_search_sorted(const StepRequest& request) {
  std::unique_ptr<HostStep> step;
  with_sorted_type(request.inputs[0].dtype, [&](auto* type) {
    step = std::make_unique<SearchStep<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>>(request);
  });
  return step;
}
std::unique_ptr<HostStep> make_top_indices(const StepRequest& request) { return make_top(request, false); }
std::unique_ptr<HostStep> make_top_values(const StepRequest& request) { return make_top(request, true); }

}  // namespace walle

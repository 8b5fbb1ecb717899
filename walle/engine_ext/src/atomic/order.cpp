// Operators that order elements: the greatest or least k along an axis, distinct slices. NaN counts as greater than all numbers.
#include <algorithm>
#include <numeric>

#include "atomic/conversion.h"
#include "core/small_float.h"

namespace walle {

namespace {

// Calls f with a null pointer of the C++ type that holds a dtype; float16 and bfloat16 as Half and BFloat.
template <class F>
void with_type(DType dtype, F&& f) {
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

// -1, 0 or 1.
template <class T>
int compare(T a, T b) noexcept {
  if (a < b) return -1;
  if (b < a) return 1;
  return a == b ? 0 : static_cast<int>(a != a) - static_cast<int>(b != b);  // a NaN on either side
}

template <class T>
class TopStep final : public Step {
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
    others_ = Nest<2>::make(shape, {in_strides, out_strides}, {sizeof(T), item_size(request.result.dtype)});
    scratch_bytes_ = static_cast<std::size_t>(length_) * sizeof(std::int64_t);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* places = reinterpret_cast<std::int64_t*>(scratch);
    others_.walk({inputs[0], output}, 0, [&](const auto& at) {
      const auto* from = reinterpret_cast<const T*>(at[0]);
      std::iota(places, places + length_, std::int64_t{0});
      std::partial_sort(places, places + count_, places + length_, [&](std::int64_t a, std::int64_t b) {
        const int order = compare<T>(from[a * stride_], from[b * stride_]);
        return order != 0 ? (order > 0) == largest_ : a < b;
      });
      for (std::int64_t i = 0; i < count_; ++i) {
        if (values_)
          reinterpret_cast<T*>(at[1])[i * out_stride_] = from[places[i] * stride_];
        else
          reinterpret_cast<std::int64_t*>(at[1])[i * out_stride_] = places[i];
      }
    });
  }

 private:
  Nest<2> others_;
  std::int64_t length_, count_, stride_, out_stride_;
  bool values_, largest_;
};

TensorType infer_top(std::span<const Operand> operands, const Attributes& attributes) {
  TensorType result{operands[0].dtype, operands[0].shape};
  const std::size_t axis = normal_axis(attributes.get_int("axis", -1), result.shape.size());
  const std::int64_t k = attributes.get_int("k", 0);
  if (k < 0 || k > result.shape[axis])
    throw Error(ErrorKind::shape, "the first " + std::to_string(k) + " of an axis of " + std::to_string(result.shape[axis]));
  with_type(result.dtype, [](auto*) {});
  result.shape[axis] = k;
  return result;
}

std::unique_ptr<Step> make_top(const StepRequest& request, bool values) {
  std::unique_ptr<Step> step;
  with_type(request.inputs[0].dtype, [&](auto* type) {
    step = std::make_unique<TopStep<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>>(request, values);
  });
  return step;
}

// Slices along an axis (or single elements, without one), grouped by equality.
struct Groups {
  std::vector<std::int64_t> first, inverse, counts;  // by group, by slice, by group
};

template <class T>
Groups group(const Dims& shape, const Dims& strides, const T* data, const Attributes& attributes) {
  Dims rest = shape, rest_strides = strides;
  std::int64_t slices = element_count(shape), slice_stride = 0;
  std::vector<std::int64_t> begins, offsets;  // of slices, and of elements within one
  const auto enumerate = [](const Dims& dims, const Dims& steps) {
    std::vector<std::int64_t> places;
    if (element_count(dims) == 0) return places;
    Nest<1>::make(dims, {steps}, {1}).walk({reinterpret_cast<std::byte*>(0)}, 0, [&](const auto& at) {
      places.push_back(reinterpret_cast<std::intptr_t>(at[0]));
    });
    return places;
  };
  if (attributes.has("axis")) {
    const std::size_t axis = normal_axis(attributes.get_int("axis", 0), shape.size());
    slices = shape[axis];
    slice_stride = strides[axis];
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(axis));
    rest_strides.erase(rest_strides.begin() + static_cast<std::ptrdiff_t>(axis));
    offsets = enumerate(rest, rest_strides);
    for (std::int64_t i = 0; i < slices; ++i) begins.push_back(i * slice_stride);
  } else {
    begins = enumerate(shape, strides);
    offsets = {0};
  }
  const auto order = [&](std::int64_t a, std::int64_t b) {
    for (const std::int64_t offset : offsets)
      if (const int result =
              compare<T>(data[begins[static_cast<std::size_t>(a)] + offset], data[begins[static_cast<std::size_t>(b)] + offset]))
        return result;
    return 0;
  };
  std::vector<std::int64_t> sorted(begins.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::int64_t a, std::int64_t b) { return order(a, b) < 0; });
  Groups groups;
  groups.inverse.resize(begins.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || order(sorted[i - 1], sorted[i]) != 0) {
      groups.first.push_back(sorted[i]);
      groups.counts.push_back(0);
    }
    ++groups.counts.back();
    groups.inverse[static_cast<std::size_t>(sorted[i])] = static_cast<std::int64_t>(groups.first.size()) - 1;
  }
  if (attributes.get_int("sorted", 1) != 0) return groups;
  std::vector<std::int64_t> by_first(groups.first.size()), place(groups.first.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::sort(by_first.begin(), by_first.end(), [&](std::int64_t a, std::int64_t b) {
    return groups.first[static_cast<std::size_t>(a)] < groups.first[static_cast<std::size_t>(b)];
  });
  Groups result;
  for (std::size_t i = 0; i < by_first.size(); ++i) {
    const auto from = static_cast<std::size_t>(by_first[i]);
    result.first.push_back(groups.first[from]);
    result.counts.push_back(groups.counts[from]);
    place[from] = static_cast<std::int64_t>(i);
  }
  for (const std::int64_t old : groups.inverse) result.inverse.push_back(place[static_cast<std::size_t>(old)]);
  return result;
}

Groups groups_of(DType dtype, const Dims& shape, const Dims& strides, const std::byte* data, const Attributes& attributes) {
  Groups groups;
  with_type(dtype, [&](auto* type) { groups = group(shape, strides, reinterpret_cast<decltype(type)>(data), attributes); });
  return groups;
}

using Part = std::vector<std::int64_t> Groups::*;

TensorType infer_unique(std::span<const Operand> operands, const Attributes& attributes, Part part) {
  const Tensor* x = operands[0].constant;
  if (x == nullptr) throw ValueNeeded(0, "the input of Unique");
  const Groups groups = groups_of(x->dtype(), x->shape(), x->strides(), x->raw(), attributes);
  return {DType::i64, {static_cast<std::int64_t>((groups.*part).size())}};
}

// Its input is a constant: the result's shape hangs on it.
class UniqueStep final : public Step {
 public:
  UniqueStep(const StepRequest& request, Part part) {
    const Tensor& x = *request.inputs[0].constant;
    numbers_ = groups_of(x.dtype(), x.shape(), x.strides(), x.raw(), request.attributes).*part;
  }
  void run(std::byte* const*, std::byte* output, std::byte*) const noexcept override {
    std::copy(numbers_.begin(), numbers_.end(), reinterpret_cast<std::int64_t*>(output));
  }

 private:
  std::vector<std::int64_t> numbers_;
};

std::vector<std::int64_t> nonzero_places(const Tensor& x, const Table& table) {
  std::vector<std::byte> truths(static_cast<std::size_t>(x.size()));
  std::byte* const inputs[] = {x.raw()};
  CastStep({x.dtype(), x.shape(), x.strides()}, {DType::b8, x.shape()}, 0, table).run(inputs, truths.data(), nullptr);
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < truths.size(); ++i)
    if (truths[i] != std::byte{0}) places.push_back(static_cast<std::int64_t>(i));
  return places;
}

class NonZeroStep final : public Step {
 public:
  explicit NonZeroStep(const StepRequest& request)
      : shape_(request.inputs[0].shape), places_(nonzero_places(*request.inputs[0].constant, request.table)) {}
  void run(std::byte* const*, std::byte* output, std::byte*) const noexcept override {
    auto* out = reinterpret_cast<std::int64_t*>(output);
    const std::size_t count = places_.size();
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t rest = places_[i];
      for (std::size_t axis = shape_.size(); axis-- > 0;) {
        out[axis * count + i] = rest % shape_[axis];
        rest /= shape_[axis];
      }
    }
  }

 private:
  Dims shape_;
  std::vector<std::int64_t> places_;
};

}  // namespace

TensorType infer_non_zero(std::span<const Operand> operands, const Attributes&) {
  const Tensor* x = operands[0].constant;
  if (x == nullptr) throw ValueNeeded(0, "the input of NonZero");
  return {
      DType::i64,
      {static_cast<std::int64_t>(x->shape().size()), static_cast<std::int64_t>(nonzero_places(*x, kernels("scalar")).size())}};
}
std::unique_ptr<Step> make_non_zero(const StepRequest& request) { return std::make_unique<NonZeroStep>(request); }

TensorType infer_top_indices(std::span<const Operand> operands, const Attributes& attributes) {
  return {DType::i64, infer_top(operands, attributes).shape};
}
TensorType infer_top_values(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_top(operands, attributes);
}
std::unique_ptr<Step> make_top_indices(const StepRequest& request) { return make_top(request, false); }
std::unique_ptr<Step> make_top_values(const StepRequest& request) { return make_top(request, true); }

TensorType infer_unique_counts(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_unique(operands, attributes, &Groups::counts);
}
TensorType infer_unique_first(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_unique(operands, attributes, &Groups::first);
}
TensorType infer_unique_inverse(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_unique(operands, attributes, &Groups::inverse);
}
std::unique_ptr<Step> make_unique_counts(const StepRequest& request) {
  return std::make_unique<UniqueStep>(request, &Groups::counts);
}
std::unique_ptr<Step> make_unique_first(const StepRequest& request) {
  return std::make_unique<UniqueStep>(request, &Groups::first);
}
std::unique_ptr<Step> make_unique_inverse(const StepRequest& request) {
  return std::make_unique<UniqueStep>(request, &Groups::inverse);
}

}  // namespace walle

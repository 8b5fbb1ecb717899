// Operators whose output shapes depend on data. They have no place in a plan: a module computes them between plans.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>

#include "core/small_float.h"
#include "geometry/transform/transform.h"
#include "operators/op.h"

namespace walle {

namespace {

// Calls f with a pointer to the elements as numbers of their type, or where there is no such number type as bits of their size.
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
                  "an operator whose output shape depends on data takes no " + std::string(dtype_name(tensor.dtype())));
  }
}

Tensor whole(const Dims& numbers) {
  Tensor result = Tensor::empty(DType::i64, {static_cast<std::int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), result.data<std::int64_t>());
  return result;
}

// The slices [index] along `axis`, one after the other.
Tensor take(const Tensor& x, std::size_t axis, const Dims& index) {
  Dims shape = x.shape();
  std::int64_t outer = 1, inner = static_cast<std::int64_t>(item_size(x.dtype()));
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  const std::int64_t from = shape[axis];
  shape[axis] = static_cast<std::int64_t>(index.size());
  Tensor result = Tensor::empty(x.dtype(), std::move(shape));
  std::byte* to = result.raw();
  for (std::int64_t o = 0; o < outer && inner > 0; ++o)
    for (const std::int64_t i : index) {
      std::memcpy(to, x.raw() + (o * from + i) * inner, static_cast<std::size_t>(inner));
      to += inner;
    }
  return result;
}

Tensor flat(const Tensor& x) { return Tensor(x.storage(), x.dtype(), {x.size()}, {1}, x.offset()); }

std::int64_t count_set(const unsigned char* flags, std::int64_t size) {
  std::int64_t total = 0;
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t end = std::min<std::int64_t>(size, done + 255);  // a byte holds the sum
    unsigned char part = 0;
    for (; done < end; ++done) part = static_cast<unsigned char>(part + (flags[done] != 0));
    total += part;
  }
  return total;
}

// Those of `count` items whose flag is set, one after the other; without a branch for each.
template <class Item>
void keep_flagged(const std::byte* items, const unsigned char* flags, std::int64_t kept, std::byte* to) {
  const auto* from = reinterpret_cast<const Item*>(items);
  auto* result = reinterpret_cast<Item*>(to);
  for (std::int64_t i = 0, found = 0; found < kept; ++i) {
    result[found] = from[i];
    found += flags[i] != 0;
  }
}

// ONNX Compress: the slices along `axis` (of the flattened tensor where there is none) whose condition is true.
std::vector<Tensor> compress(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor x = attributes.has("axis") ? inputs[0] : flat(inputs[0]);
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), x.shape().size());
  const Tensor& condition = inputs[1];
  if (condition.dtype() != DType::b8 || condition.ndim() != 1 || condition.size() > x.shape()[axis])
    throw Error(ErrorKind::shape, "Compress takes one bool for each of at most " + std::to_string(x.shape()[axis]) +
                                      " slices, not " + std::string(dtype_name(condition.dtype())) + " of shape " +
                                      to_string(condition.shape()));
  const auto* flags = condition.data<const unsigned char>();
  if (x.ndim() == 1) {
    const std::int64_t kept = count_set(flags, condition.size());
    Tensor result = Tensor::empty(x.dtype(), {kept});
    constexpr decltype(&keep_flagged<std::uint8_t>) keep[] = {&keep_flagged<std::uint8_t>, &keep_flagged<std::uint16_t>,
                                                              &keep_flagged<std::uint32_t>, &keep_flagged<std::uint64_t>};
    keep[std::bit_width(item_size(x.dtype())) - 1](x.raw(), flags, kept, result.raw());
    return {result};
  }
  Dims index;
  for (std::int64_t i = 0; i < condition.size(); ++i)
    if (flags[i] != 0) index.push_back(i);
  return {take(x, axis, index)};
}

// How often each whole number from 0 on is among the elements, or the sum of its float64 weights; at least `minlength` numbers.
std::vector<Tensor> bin_count(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor& x = inputs[0];
  const bool weighted = inputs.size() > 1;
  if (weighted && (inputs[1].dtype() != DType::f64 || inputs[1].shape() != x.shape()))
    throw Error(ErrorKind::shape, "BinCount takes float64 weights of shape " + to_string(x.shape()) + ", not " +
                                      std::string(dtype_name(inputs[1].dtype())) + " of shape " + to_string(inputs[1].shape()));
  std::vector<Tensor> results;
  with_elements(x, [&](const auto* at) {
    using T = std::remove_cvref_t<decltype(*at)>;
    if constexpr (std::is_integral_v<T>) {
      std::int64_t least = 0, most = -1;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        least = std::min(least, static_cast<std::int64_t>(at[i]));
        most = std::max(most, static_cast<std::int64_t>(at[i]));
      }
      if (least < 0) throw Error(ErrorKind::shape, "BinCount of a number below 0, or of one that int64 does not hold");
      if (most == std::numeric_limits<std::int64_t>::max()) throw std::bad_alloc();
      const std::int64_t length = std::max(attributes.get_int("minlength", 0), most + 1);
      Tensor result = Tensor::empty(weighted ? DType::f64 : DType::i64, {length});
      std::memset(result.raw(), 0, static_cast<std::size_t>(length) * sizeof(std::int64_t));
      auto* counts = result.data<std::int64_t>();
      auto* sums = result.data<double>();
      const auto* weights = weighted ? inputs[1].data<const double>() : nullptr;
      for (std::int64_t i = 0; i < x.size() && !weighted; ++i) ++counts[at[i]];
      for (std::int64_t i = 0; i < x.size() && weighted; ++i) sums[at[i]] += weights[i];
      results.push_back(std::move(result));
    } else {
      throw Error(ErrorKind::dtype, "BinCount takes whole numbers, not " + std::string(dtype_name(x.dtype())));
    }
  });
  return results;
}

// ONNX NonZero: the coordinates of all elements that are not 0, (rank, count), in row-major order.
std::vector<Tensor> non_zero(std::span<const Tensor> inputs, const Attributes&, int) {
  const Tensor& x = inputs[0];
  const std::int64_t size = x.size();
  std::int64_t count = 0;
  with_elements(x, [&](const auto* at) {
    if constexpr (sizeof(*at) == 1)
      count = count_set(reinterpret_cast<const unsigned char*>(at), size);
    else
      for (std::int64_t i = 0; i < size; ++i) count += at[i] != 0;
  });
  Tensor result = Tensor::empty(DType::i64, {x.ndim(), count});
  if (count == 0) return {result};
  if (x.ndim() == 0) return {result};
  const auto last = static_cast<std::size_t>(x.ndim() - 1);
  const std::int64_t row = x.shape()[last];
  auto* places = result.data<std::int64_t>();
  auto* columns = places + static_cast<std::int64_t>(last) * count;
  with_elements(x, [&](const auto* at) {  // row by row; the coordinates of a row are the same but for the last
    Dims outer(last, 0);
    for (std::int64_t start = 0, found = 0; found < count; start += row) {
      const std::int64_t before = found;
      for (std::int64_t i = 0; i < row && found < count; ++i) {  // without a branch for each element
        columns[found] = i;
        found += at[start + i] != 0;
      }
      for (std::size_t axis = 0; axis < last; ++axis)
        std::fill(places + static_cast<std::int64_t>(axis) * count + before,
                  places + static_cast<std::int64_t>(axis) * count + found, outer[axis]);
      for (std::size_t axis = last; axis-- > 0;) {
        if (++outer[axis] < x.shape()[axis]) break;
        outer[axis] = 0;
      }
    }
  });
  return {result};
}

// ONNX Unique: the distinct slices along `axis` (elements where there is none), sorted or in the order of first appearance; where
// each first appears, which of them each slice is, and how often each is there.
std::vector<Tensor> unique(std::span<const Tensor> inputs, const Attributes& attributes, int outputs) {
  const Tensor x = attributes.has("axis") ? inputs[0] : flat(inputs[0]);
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), x.shape().size());
  const std::int64_t slices = x.shape()[axis];
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= x.shape()[i];
  for (std::size_t i = axis + 1; i < x.shape().size(); ++i) inner *= x.shape()[i];
  Dims first, inverse(static_cast<std::size_t>(slices)), counts;
  with_elements(x, [&](const auto* at) {
    const auto compare = [&](std::int64_t a, std::int64_t b) {
      for (std::int64_t o = 0; o < outer; ++o)
        for (std::int64_t i = 0; i < inner; ++i) {
          const auto left = at[(o * slices + a) * inner + i], right = at[(o * slices + b) * inner + i];
          if (left < right) return -1;
          if (right < left) return 1;
          if (left != right && (left == left || right == right)) return left == left ? -1 : 1;  // NaN is the greatest
        }
      return 0;
    };
    Dims order(static_cast<std::size_t>(slices));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return compare(a, b) < 0; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || compare(order[i - 1], order[i]) != 0) {
        first.push_back(order[i]);
        counts.push_back(0);
      }
      inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(first.size() - 1);
      ++counts.back();
    }
  });
  if (attributes.get_int("sorted", 1) == 0) {  // by first appearance
    Dims rank(first.size()), place(first.size());
    std::iota(rank.begin(), rank.end(), 0);
    std::sort(rank.begin(), rank.end(), [&](std::int64_t a, std::int64_t b) {
      return first[static_cast<std::size_t>(a)] < first[static_cast<std::size_t>(b)];
    });
    Dims new_first, new_counts;
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const auto old = static_cast<std::size_t>(rank[i]);
      place[old] = static_cast<std::int64_t>(i);
      new_first.push_back(first[old]);
      new_counts.push_back(counts[old]);
    }
    for (std::int64_t& one : inverse) one = place[static_cast<std::size_t>(one)];
    first = std::move(new_first);
    counts = std::move(new_counts);
  }
  std::vector<Tensor> results{take(x, axis, first), whole(first), whole(inverse), whole(counts)};
  results.resize(static_cast<std::size_t>(std::clamp(outputs, 1, 4)));
  return results;
}

}  // namespace

std::vector<Tensor> non_max_suppression(std::span<const Tensor>, const Attributes&, int);  // suppression.cpp

std::vector<Tensor> component_statistics(std::span<const Tensor>, const Attributes&, int);  // components.cpp
std::vector<Tensor> approximate_polygon(std::span<const Tensor>, const Attributes&, int);   // polygons.cpp
std::vector<Tensor> convex_hull(std::span<const Tensor>, const Attributes&, int);
std::vector<Tensor> polygon_moments(std::span<const Tensor>, const Attributes&, int);
std::vector<Tensor> equalizing_table(std::span<const Tensor>, const Attributes&, int);  // tones.cpp
std::vector<Tensor> histogram_bound(std::span<const Tensor>, const Attributes&, int);
std::vector<Tensor> find_contours(std::span<const Tensor>, const Attributes&, int);  // contours.cpp
std::vector<Tensor> line_spans(std::span<const Tensor>, const Attributes&, int);     // spans.cpp
std::vector<Tensor> polygon_spans(std::span<const Tensor>, const Attributes&, int);
std::vector<Tensor> circle_spans(std::span<const Tensor>, const Attributes&, int);

std::span<const DataOp> data_operators() noexcept {
  static constexpr std::array<DataOp, 15> table{{
      {"ApproximatePolygon", 1, 1, &approximate_polygon},
      {"BinCount", 1, 2, &bin_count},
      {"CircleSpans", 0, 0, &circle_spans},
      {"ComponentStatistics", 1, 1, &component_statistics},
      {"Compress", 2, 2, &compress},
      {"ConvexHull", 1, 1, &convex_hull},
      {"EqualizingTable", 1, 1, &equalizing_table},
      {"FindContours", 1, 1, &find_contours},
      {"HistogramBound", 1, 1, &histogram_bound},
      {"LineSpans", 1, 1, &line_spans},
      {"NonMaxSuppression", 2, 5, &non_max_suppression},
      {"NonZero", 1, 1, &non_zero},
      {"PolygonMoments", 1, 1, &polygon_moments},
      {"PolygonSpans", 2, 2, &polygon_spans},
      {"Unique", 1, 1, &unique},
  }};
  return table;
}

}  // namespace walle

// BinCount: the count of each integer.
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "operators/data/data.h"

namespace walle {

// Count each integer from 0 on, or sum its float64 weights; the result has at least `minlength` numbers.
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
      run_stoppable(x.size(), 1, [&](std::int64_t first, std::int64_t last) {
        std::int64_t low = least, high = most;  // local copies stay in registers
        for (std::int64_t i = first; i < last; ++i) {
          low = std::min(low, static_cast<std::int64_t>(at[i]));
          high = std::max(high, static_cast<std::int64_t>(at[i]));
        }
        least = low, most = high;
      });
      if (least < 0) throw Error(ErrorKind::shape, "BinCount of a number below 0, or of one that int64 does not hold");
      if (most == std::numeric_limits<std::int64_t>::max())
        throw OutOfMemory("BinCount of " + std::to_string(most) + " has as many counts and 1: more memory than the machine has");
      const std::int64_t length = std::max(attributes.get_int("minlength", 0), most + 1);
      Tensor result = Tensor::empty(weighted ? DType::f64 : DType::i64, {length});
      run_stoppable(length, 1, [&](std::int64_t first, std::int64_t last) {
        std::memset(result.data<std::int64_t>() + first, 0, static_cast<std::size_t>(last - first) * sizeof(std::int64_t));
      });
      auto* counts = result.data<std::int64_t>();
      auto* sums = result.data<double>();
      const auto* weights = weighted ? inputs[1].data<const double>() : nullptr;
      // Another thread may change the numbers after their range was found: those that left it are not counted.
      const auto counted = [=](T number) { return static_cast<std::uint64_t>(number) < static_cast<std::uint64_t>(length); };
      run_stoppable(x.size(), 2, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last && !weighted; ++i)
          if (const T number = at[i]; counted(number)) ++counts[number];
        for (std::int64_t i = first; i < last && weighted; ++i)
          if (const T number = at[i]; counted(number)) sums[number] += weights[i];
      });
      results.push_back(std::move(result));
    } else {
      throw Error(ErrorKind::dtype, "BinCount takes whole numbers, not " + std::string(dtype_name(x.dtype())));
    }
  });
  return results;
}

}  // namespace walle

// HistogramBound and EqualizingTable: a threshold and a look-up table from the histogram of an 8-bit image.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "operators/op.h"

namespace walle {

namespace {

constexpr std::int64_t kTones = 256;

// Throw Error unless the input is int32 counts, none negative and at least one positive.
std::vector<std::int64_t> counts_of(std::string_view op, const Tensor& given) {
  if (given.dtype() != DType::i32 || given.size() != kTones)
    throw Error(ErrorKind::shape, std::string(op) + " takes 256 int32 counts, not " + std::string(dtype_name(given.dtype())) +
                                      " of shape " + to_string(given.shape()));
  std::vector<std::int64_t> counts(given.data<std::int32_t>(), given.data<std::int32_t>() + kTones);
  if (*std::min_element(counts.begin(), counts.end()) < 0 || *std::max_element(counts.begin(), counts.end()) == 0)
    throw Error(ErrorKind::model, std::string(op) + " of counts that are negative or all 0");
  return counts;
}

// Return the threshold with the greatest variance between the two classes (Otsu, 1979).
int otsu_bound(const std::vector<std::int64_t>& counts) {
  double total = 0, whole = 0;
  for (std::size_t tone = 0; tone < counts.size(); ++tone) {
    total += static_cast<double>(counts[tone]);
    whole += static_cast<double>(tone) * static_cast<double>(counts[tone]);
  }
  whole /= total;
  constexpr double tiny = std::numeric_limits<float>::epsilon();
  double share = 0, mean = 0, most = 0;
  int bound = 0;
  for (std::size_t tone = 0; tone < counts.size(); ++tone) {
    const double part = static_cast<double>(counts[tone]) / total;
    mean *= share;
    share += part;
    const double rest = 1 - share;
    if (std::min(share, rest) < tiny || std::max(share, rest) > 1 - tiny) continue;
    mean = (mean + static_cast<double>(tone) * part) / share;
    const double apart = mean - (whole - share * mean) / rest, between = share * rest * apart * apart;
    if (between > most) most = between, bound = static_cast<int>(tone);
  }
  return bound;
}

// Return the tone farthest below the line from the peak of the counts to their farther end (Zack, 1977).
int triangle_bound(std::vector<std::int64_t> counts) {
  constexpr std::int64_t last = kTones - 1;
  std::int64_t left = 0, right = last;
  while (counts[static_cast<std::size_t>(left)] == 0) ++left;
  while (counts[static_cast<std::size_t>(right)] == 0) --right;
  left = std::max<std::int64_t>(left - 1, 0);
  right = std::min(right + 1, last);
  std::int64_t peak = std::max_element(counts.begin(), counts.end()) - counts.begin();
  const bool flipped = peak - left < right - peak;
  if (flipped) {
    std::reverse(counts.begin(), counts.end());
    left = last - right;
    peak = last - peak;
  }
  const std::int64_t height = counts[static_cast<std::size_t>(peak)];
  std::int64_t bound = left, farthest = 0;
  for (std::int64_t tone = left + 1; tone <= peak; ++tone) {
    const std::int64_t far = height * tone + (left - peak) * counts[static_cast<std::size_t>(tone)];
    if (far > farthest) farthest = far, bound = tone;
  }
  --bound;
  return static_cast<int>(flipped ? last - bound : bound);
}

}  // namespace

// Input: int32 [256], the count of each tone in an image. Result: int32 [1], the threshold between dark and bright by the
// attribute `method`, "otsu" or "triangle".
std::vector<Tensor> histogram_bound(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const std::string method = attributes.get_string("method", "otsu");
  if (method != "otsu" && method != "triangle")
    throw Error(ErrorKind::unsupported, "HistogramBound has no method '" + method + "'; known are otsu and triangle");
  auto counts = counts_of("HistogramBound", inputs[0]);
  Tensor bound = Tensor::empty(DType::i32, {1});
  *bound.data<std::int32_t>() = method == "otsu" ? otsu_bound(counts) : triangle_bound(std::move(counts));
  return {bound};
}

// Input: int32 [256], the count of each tone in an image. Result: uint8 [256], the tones that equalize the histogram; if an image
// has only one tone, that tone is unchanged.
std::vector<Tensor> equalizing_table(std::span<const Tensor> inputs, const Attributes&, int) {
  const auto counts = counts_of("EqualizingTable", inputs[0]);
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  Tensor result = Tensor::empty(DType::u8, {kTones});
  auto* table = result.data<std::uint8_t>();
  std::size_t first = 0;
  while (counts[first] == 0) ++first;
  if (counts[first] == total) {
    std::fill(table, table + kTones, static_cast<std::uint8_t>(first));
    return {result};
  }
  const float scale = 255.0F / static_cast<float>(total - counts[first]);
  std::fill(table, table + first + 1, std::uint8_t{0});
  std::int64_t below = 0;
  for (std::size_t tone = first + 1; tone < counts.size(); ++tone) {
    below += counts[tone];
    table[tone] = static_cast<std::uint8_t>(std::clamp(std::lrint(static_cast<float>(below) * scale), 0L, 255L));
  }
  return {result};
}

}  // namespace walle

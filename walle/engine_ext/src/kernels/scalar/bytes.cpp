// The kernels of bytes in plain C++ (see Bytes): what those of every instruction set mean.
#include "kernels/bytes.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace walle::scalar {

namespace {

constexpr std::int64_t kPack = 4;

std::uint32_t bits(float x) noexcept { return std::bit_cast<std::uint32_t>(x); }

// Sums wrap around, as unsigned numbers do.
void panel(const PanelArgs& args) noexcept {
  const std::int64_t columns = (args.blocks - 1) * kPack + args.width;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const auto place = [&](std::int64_t j) { return args.out + row * args.out_step + j / kPack * args.out_block + j % kPack; };
    std::uint32_t sums[2 * kPack] = {};
    for (std::int64_t j = 0; j < columns; ++j)
      if (args.accumulate || args.finish.bias != nullptr) sums[j] = bits(args.accumulate ? *place(j) : args.finish.bias[j]);
    const float* w = args.w;
    for (std::int64_t s = 0; s < args.segment_count; ++s) {
      const float* a = args.a + row * args.a_step + args.segments[s].offset;
      for (std::int64_t k = 0; k < args.segments[s].length; ++k, w += args.blocks * kPack)
        for (std::int64_t j = 0; j < columns; ++j)
          for (int at = 0; at < 32; at += 8)
            sums[j] += static_cast<std::uint32_t>(static_cast<int>(bits(a[k]) >> at & 0xff) *
                                                  static_cast<std::int8_t>(bits(w[j]) >> at & 0xff));
    }
    for (std::int64_t j = 0; j < columns; ++j) *place(j) = std::bit_cast<float>(sums[j]);
  }
}

void quads(const std::uint8_t* const (&planes)[4], std::uint8_t flip, std::int64_t count, float* out,
           std::int64_t out_step) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t quad = 0;
    for (int p = 0; p < 4; ++p) quad |= std::uint32_t{static_cast<std::uint8_t>(planes[p][i] ^ flip)} << (8 * p);
    out[i * out_step] = std::bit_cast<float>(quad);
  }
}

void finish(const BytesFinish& args) noexcept {
  for (std::int64_t r = 0; r < args.rows; ++r)
    for (std::int64_t j = 0; j < args.columns; ++j) {
      const auto sum = std::bit_cast<std::int32_t>(args.sums[r * 2 * kPack + j]);
      const std::int64_t at = r * args.row_step + j * args.column_step;
      if (args.scale == nullptr) {
        static_cast<std::int32_t*>(args.out)[at] = sum;
        continue;
      }
      const float value = std::nearbyint(static_cast<float>(sum) * args.scale[j]) + args.zero;
      static_cast<std::uint8_t*>(args.out)[at] = static_cast<std::uint8_t>(
          static_cast<std::int32_t>(value < args.high ? (value > args.low ? value : args.low) : args.high));
    }
}

}  // namespace

const Bytes kBytes{kPack, &panel, &quads, &finish};

}  // namespace walle::scalar

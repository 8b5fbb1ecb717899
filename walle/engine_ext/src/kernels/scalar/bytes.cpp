// Kernels of bytes in plain C++ (see Bytes): the reference for every instruction set.
#include "kernels/scalar/set.h"

#include <bit>
#include <cmath>

namespace walle::scalar {

namespace {

constexpr std::int64_t kPack = 4;

std::uint32_t bits(float x) noexcept { return std::bit_cast<std::uint32_t>(x); }
float* place(const PanelArgs& args, std::int64_t row, std::int64_t j) noexcept {
  return args.out + row * args.out_step + j / kPack * args.out_block + j % kPack;
}

// Sums wrap, as unsigned numbers do.
void panel(const PanelArgs& args) noexcept {
  const std::int64_t columns = (args.blocks - 1) * kPack + args.width;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    std::uint32_t sums[2 * kPack] = {};
    for (std::int64_t j = 0; j < columns; ++j)
      if (args.accumulate || args.finish.bias != nullptr)
        sums[j] = bits(args.accumulate ? *place(args, row, j) : args.finish.bias[j]);
    const float* w = args.w;
    for (std::int64_t s = 0; s < args.segment_count; ++s) {
      const float* a = args.a + row * args.a_step + args.segments[s].offset;
      for (std::int64_t k = 0; k < args.segments[s].length; ++k, w += args.blocks * kPack)
        for (std::int64_t j = 0; j < columns; ++j)
          for (int at = 0; at < 32; at += 8)
            sums[j] += static_cast<std::uint32_t>(static_cast<int>(bits(a[k]) >> at & 0xff) *
                                                  static_cast<std::int8_t>(bits(w[j]) >> at & 0xff));
    }
    for (std::int64_t j = 0; j < columns; ++j) *place(args, row, j) = std::bit_cast<float>(sums[j]);
  }
}

void depthwise(const PanelArgs& args) noexcept {
  for (std::int64_t row = 0; row < args.rows; ++row)
    for (std::int64_t j = 0; j < args.blocks * kPack; ++j) {
      std::uint32_t sum = args.finish.bias == nullptr ? 0 : bits(args.finish.bias[j]);
      for (std::int64_t s = 0; s < args.segment_count; ++s) {
        const auto* a = reinterpret_cast<const std::uint8_t*>(args.a + row * args.a_step + args.segments[s].offset);
        sum += a[j] * bits(args.w[s * args.blocks * kPack + j]);
      }
      *place(args, row, j) = std::bit_cast<float>(sum);
    }
}

std::uint8_t made_byte(float value, const ByteRange& range) noexcept {
  const float least = value > range.low ? value : range.low;
  const float bounded = least < range.high ? least : range.high;
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(std::nearbyint(bounded)) + range.zero);
}

void finish(const BytesFinish& args) noexcept {
  for (std::int64_t r = 0; r < args.rows; ++r)
    for (std::int64_t j = 0; j < args.columns; ++j) {
      const auto sum = std::bit_cast<std::int32_t>(args.sums[r * 2 * kPack + j]);
      const std::int64_t at = r * args.row_step + j;
      if (args.scale == nullptr)
        static_cast<std::int32_t*>(args.out)[at] = sum;
      else
        static_cast<std::uint8_t*>(args.out)[at] = made_byte(static_cast<float>(sum) * args.scale[j], args.range);
    }
}

void sum(const BytesSum& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i) {
    const auto centred = [&](int k) { return static_cast<float>((args.in[k][i] ^ args.flip[k]) - args.zero[k]); };
    args.out[i] = made_byte(std::fma(centred(0), args.scale[0], centred(1) * args.scale[1]), args.range);
  }
}

void round(const BytesRound& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i) {
    const float value = args.in[i] / args.scale;
    args.out[i] = value == value ? made_byte(value, args.range) : std::uint8_t{0};
  }
}

}  // namespace

const Bytes kBytes{"plain bytes", kPack, &panel, &depthwise, &finish, &sum, &round};

}  // namespace walle::scalar

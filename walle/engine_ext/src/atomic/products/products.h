// Matrix products that stop early when their work is cancelled (see core/work_context.h).
#pragma once
#include <algorithm>

#include "core/work_context.h"
#include "kernels/table.h"

namespace walle {

// Runs a product like gemm.run, in pieces of rows where it takes long. `item` is an element's size in bytes.
inline void run_product(const Gemm& gemm, GemmArgs args, std::int64_t item, StopPoll& poll) noexcept {
  constexpr std::int64_t kMost = std::int64_t{1} << 28;  // multiplications of a piece: some ten milliseconds
  constexpr std::int64_t kLeastRows = 168;               // whose products take much longer than packing B again
  const double row = static_cast<double>(args.n) * static_cast<double>(args.k);
  const std::int64_t all = args.m;
  const std::int64_t at_once = static_cast<double>(all) * row <= kMost
                                   ? std::max<std::int64_t>(all, 1)
                                   : std::max(kLeastRows, static_cast<std::int64_t>(kMost / row) / kLeastRows * kLeastRows);
  for (std::int64_t first = 0; first < all; first += at_once) {
    args.m = std::min(at_once, all - first);
    // A kernel does about eight multiplications in the time of one element of other loops.
    if (!poll.proceed(static_cast<std::int64_t>(std::min(static_cast<double>(args.m) * row / 8, 1e15)))) return;
    gemm.run(args);
    args.a = static_cast<const std::byte*>(args.a) + args.m * args.a_row * item;
    args.out = static_cast<std::byte*>(args.out) + args.m * args.out_row * item;
  }
}

}  // namespace walle

// Steps of reductions: sums, products, extremes, means, and the places of extremes.
#pragma once
#include "atomic/atomic.h"

namespace walle {

// `axes`: the reduced axes, ascending and distinct. A mean is a sum that is divided by its count.
std::unique_ptr<HostStep> make_reduce_step(ReduceOp op, const Layout& input, std::span<const std::size_t> axes,
                                           const Table& table);
std::unique_ptr<HostStep> make_mean_step(const Layout& input, std::span<const std::size_t> axes, const Table& table);
// The index of the first best element along one axis, or of the last one.
std::unique_ptr<HostStep> make_arg_step(ArgOp op, bool last, const Layout& input, std::span<const std::size_t> axes,
                                        const Table& table);

}  // namespace walle

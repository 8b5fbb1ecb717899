// PoolMax of float32 in plain layouts, by blocks of channels as lanes.
#pragma once
#include "atomic/atomic.h"
#include "geometry/window.h"

namespace walle {

// Return a step for x [batch, channels, height, width] or [batch, channels, width] with many taps and channels; null for others.
std::unique_ptr<HostStep> make_lane_pool_max(const Window& window, const Dims& x, DType dtype, const Table& table);

}  // namespace walle

// P of eq. 3: how fast a backend does each kind of work on this machine, measured and never guessed from a clock frequency.
#pragma once
#include "atomic/packed_convolution.h"

namespace walle {

struct Rates {
  // Per microsecond: operations of the tile kernel, of that of bfloat16 (0 where there is none) and of lane-by-lane kernels,
  // bytes of weights streamed from memory, bytes moved between values in the caches.
  double panel = 0, pairs = 0, lanes = 0, streamed = 0, moved = 0;

  // Q / P of a piece of work. Weights stream while the tile kernel computes, so the slower of the two counts.
  double us(const Work& work) const noexcept;
};

// This backend's, measured at the first asking in about 20 ms. Thread-safe.
const Rates& rates(const Table& table);

}  // namespace walle

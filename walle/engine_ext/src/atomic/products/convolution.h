// Convolution: one operator, several algorithms behind one record, from which each session chooses (§4.1).
#pragma once
#include "atomic/atomic.h"
#include "geometry/window.h"

namespace walle {

inline constexpr std::int64_t kFloat = sizeof(float);

// x [batch, groups * in_channels, in...], w [groups * out_channels, in_channels, kernel...], result [batch, groups *
// out_channels, out...]; channels are those of one group.
struct ConvShape {
  DType dtype = DType::f32;
  std::int64_t batch = 1, groups = 1, in_channels = 1, out_channels = 1;
  Window window;

  std::size_t type() const noexcept { return static_cast<std::size_t>(compute_index(dtype)); }
  double multiplications() const noexcept;
};

// Of operands [batch, channels, in...] and [out channels, in channels, kernel...]; throws Error (shape, model, unsupported) where
// they do not fit.
ConvShape conv_shape(const Dims& x, const Dims& w, DType dtype, const Attributes& attributes);

// Where the operands lie, and `scratch_bytes` of scratch for each member of the team, one behind the other.
struct ConvPlaces {
  const std::byte *x, *w;
  std::byte *out, *scratch;
  std::int64_t scratch_bytes;
};

// What computes a convolution. Bias, residual and activation are the step's epilogue, the same for all; an algorithm that folds
// them in takes them from the step.
struct ConvAlgorithm {
  std::string_view name;
  bool (*applies)(const ConvShape& shape, const Table& table);
  std::size_t (*scratch_bytes)(const ConvShape& shape, const Table& table);
  // Q of §4.1: elementary calculations and moved elements, in units of one vector of the backend's where its kernels have them.
  double (*workload)(const ConvShape& shape, const Table& table);
  void (*run)(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept;
};
// In the order in which a tie is decided.
std::span<const ConvAlgorithm> conv_algorithms() noexcept;
// The one of the least workload among those that apply, or the one of this name; throws Error (unsupported) where it does not
// apply.
const ConvAlgorithm& choose_algorithm(const ConvShape& shape, const Table& table, std::string_view name = {});

}  // namespace walle

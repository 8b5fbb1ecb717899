// Raster kernels over the including instruction set's vec.h: transposes of four-byte items in registers, and the permutation of
// lanes of packed layouts. They move bits of any type.

// A tile of at most kLanes x kLanes; elements beyond it are neither read nor written.
template <bool kWhole>
void transpose_tile(const float* src, std::int64_t src_column, float* dst, std::int64_t dst_row, std::int64_t rows,
                    std::int64_t columns) noexcept {
  Vec tile[kLanes];
#pragma GCC unroll 16
  for (std::int64_t c = 0; c < kLanes; ++c)
    tile[c] = kWhole ? load(src + c * src_column) : c < columns ? load_first(src + c * src_column, rows) : set(0.0f);
  transpose_lanes(tile);
  if constexpr (kWhole) {
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kLanes; ++r) store(dst + r * dst_row, tile[r]);
  } else {
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kLanes; ++r)
      if (r < rows) store_first(dst + r * dst_row, tile[r], columns);
  }
}

inline void transpose(const void* src, std::int64_t src_column, void* dst, std::int64_t dst_row, std::int64_t rows,
                      std::int64_t columns) noexcept {
  const auto* from = static_cast<const float*>(src);
  auto* to = static_cast<float*>(dst);
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const std::int64_t width = columns - c < kLanes ? columns - c : kLanes;
    for (std::int64_t r = 0; r < rows; r += kLanes) {
      const std::int64_t height = rows - r < kLanes ? rows - r : kLanes;
      if (width == kLanes && height == kLanes)
        transpose_tile<true>(from + c * src_column + r, src_column, to + r * dst_row + c, dst_row, height, width);
      else
        transpose_tile<false>(from + c * src_column + r, src_column, to + r * dst_row + c, dst_row, height, width);
    }
  }
}

template <int kParts>
void permute_parts(const LanePart* parts, float* out, std::int64_t pixels) noexcept {
  Lanes lanes[kParts];
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) lanes[p] = load_lanes(parts[p].lanes);
  for (std::int64_t at = 0; at < pixels * kLanes; at += kLanes) {
    Vec all = choose(is_lane(lanes[0]), permute(load(parts[0].in + at), lanes[0]), set(0.0f));
#pragma GCC unroll 4
    for (int p = 1; p < kParts; ++p) all = choose(is_lane(lanes[p]), permute(load(parts[p].in + at), lanes[p]), all);
    store(out + at, all);
  }
}

inline void permute_lanes(const LanePart* parts, std::int64_t count, float* out, std::int64_t pixels) noexcept {
  switch (count) {
    case 1: return permute_parts<1>(parts, out, pixels);
    case 2: return permute_parts<2>(parts, out, pixels);
    case 3: return permute_parts<3>(parts, out, pixels);
    default: return permute_parts<kMostLaneParts>(parts, out, pixels);
  }
}

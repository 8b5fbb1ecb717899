// float32 matrix multiplication over the including instruction set's vec.h (see GemmArgs).
//
// Large: A and B are packed into panels of kRows rows and kColumns columns, k in blocks of kDepth, and a micro-kernel keeps a
// kRows x kColumns tile in registers. Few rows with B as it lies in memory: rows of B are read once, nothing is packed.

inline constexpr std::int64_t kRows = 6;
inline constexpr std::int64_t kColumns = 2 * kLanes;
inline constexpr std::int64_t kDepth = 256;            // a B panel of kDepth x kColumns stays in L1
inline constexpr std::int64_t kRowBlock = 16 * kRows;  // an A block of kRowBlock x kDepth stays in L2
inline constexpr std::int64_t kColumnBlock = 64 * kColumns;
inline constexpr std::int64_t kFewRows = 4;

inline std::int64_t least(std::int64_t a, std::int64_t b) noexcept { return a < b ? a : b; }
inline std::int64_t round_up(std::int64_t a, std::int64_t step) noexcept { return (a + step - 1) / step * step; }

inline std::size_t gemm_scratch_bytes(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  const std::int64_t depth = least(k, kDepth);
  const std::int64_t floats = depth * (round_up(least(n, kColumnBlock), kColumns) + round_up(least(m, kRowBlock), kRows));
  return static_cast<std::size_t>(floats) * sizeof(float);
}

// packed[panel][k][column]: columns of B in panels of kColumns, the last one filled up with zeros.
inline void pack_b(const float* b, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns,
                   float* packed) noexcept {
  for (std::int64_t n = 0; n < columns; n += kColumns, packed += depth * kColumns) {
    const std::int64_t width = least(kColumns, columns - n);
    if (col == 1 && width == kColumns) {
      for (std::int64_t k = 0; k < depth; ++k) {
        store(packed + k * kColumns, load(b + k * row + n));
        store(packed + k * kColumns + kLanes, load(b + k * row + n + kLanes));
      }
    } else {
      for (std::int64_t j = 0; j < kColumns; ++j)
        for (std::int64_t k = 0; k < depth; ++k) packed[k * kColumns + j] = j < width ? b[k * row + (n + j) * col] : 0.0f;
    }
  }
}

// packed[panel][k][row]: rows of A in panels of kRows, the last one filled up with zeros.
inline void pack_a(const float* a, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t depth,
                   float* packed) noexcept {
  for (std::int64_t m = 0; m < rows; m += kRows, packed += depth * kRows) {
    const std::int64_t height = least(kRows, rows - m);
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t k = 0; k < depth; ++k) packed[k * kRows + i] = i < height ? a[(m + i) * row + k * col] : 0.0f;
  }
}

// out[kRows, kColumns] (rows `out_row` apart) = or += A panel x B panel.
inline void micro(const float* a, const float* b, std::int64_t depth, float* out, std::int64_t out_row,
                  bool accumulate) noexcept {
  Vec tile[kRows][2];
  for (std::int64_t i = 0; i < kRows; ++i) tile[i][0] = tile[i][1] = set(0.0f);
  for (std::int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const Vec left = load(b), right = load(b + kLanes);
#pragma GCC unroll 6
    for (std::int64_t i = 0; i < kRows; ++i) {
      const Vec factor = set(a[i]);
      tile[i][0] = fma(factor, left, tile[i][0]);
      tile[i][1] = fma(factor, right, tile[i][1]);
    }
  }
#pragma GCC unroll 6
  for (std::int64_t i = 0; i < kRows; ++i, out += out_row) {
    if (accumulate) {
      tile[i][0] = add(tile[i][0], load(out));
      tile[i][1] = add(tile[i][1], load(out + kLanes));
    }
    store(out, tile[i][0]);
    store(out + kLanes, tile[i][1]);
  }
}

inline void gemm_packed(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const float*>(args.a);
  const auto* b = static_cast<const float*>(args.b);
  auto* out = static_cast<float*>(args.out);
  auto* packed_b = static_cast<float*>(args.scratch);
  float* packed_a = packed_b + least(args.k, kDepth) * round_up(least(args.n, kColumnBlock), kColumns);
  for (std::int64_t n0 = 0; n0 < args.n; n0 += kColumnBlock) {
    const std::int64_t columns = least(kColumnBlock, args.n - n0);
    for (std::int64_t k0 = 0; k0 < args.k; k0 += kDepth) {
      const std::int64_t depth = least(kDepth, args.k - k0);
      pack_b(b + k0 * args.b_row + n0 * args.b_col, args.b_row, args.b_col, depth, columns, packed_b);
      for (std::int64_t m0 = 0; m0 < args.m; m0 += kRowBlock) {
        const std::int64_t rows = least(kRowBlock, args.m - m0);
        pack_a(a + m0 * args.a_row + k0 * args.a_col, args.a_row, args.a_col, rows, depth, packed_a);
        for (std::int64_t n = 0; n < columns; n += kColumns) {
          const std::int64_t width = least(kColumns, columns - n);
          for (std::int64_t m = 0; m < rows; m += kRows) {
            const std::int64_t height = least(kRows, rows - m);
            float* to = out + (m0 + m) * args.out_row + n0 + n;
            const float* panel_a = packed_a + m * depth;
            const float* panel_b = packed_b + n * depth;
            if (height == kRows && width == kColumns) {
              micro(panel_a, panel_b, depth, to, args.out_row, k0 > 0);
              continue;
            }
            float edge[kRows * kColumns];
            micro(panel_a, panel_b, depth, edge, kColumns, false);
            for (std::int64_t i = 0; i < height; ++i)
              for (std::int64_t j = 0; j < width; ++j)
                to[i * args.out_row + j] = edge[i * kColumns + j] + (k0 > 0 ? to[i * args.out_row + j] : 0.0f);
          }
        }
      }
    }
  }
}

// One row of `out`, B's rows contiguous: four vectors of columns at a time, then one, the last one masked.
inline void row_times_matrix(const float* a, std::int64_t a_col, const float* b, std::int64_t b_row, std::int64_t n,
                             std::int64_t k, float* out) noexcept {
  std::int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    Vec sum0 = set(0.0f), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::int64_t i = 0; i < k; ++i) {
      const Vec factor = set(a[i * a_col]);
      const float* row = b + i * b_row + j;
      sum0 = fma(factor, load(row), sum0);
      sum1 = fma(factor, load(row + kLanes), sum1);
      sum2 = fma(factor, load(row + 2 * kLanes), sum2);
      sum3 = fma(factor, load(row + 3 * kLanes), sum3);
    }
    store(out + j, sum0);
    store(out + j + kLanes, sum1);
    store(out + j + 2 * kLanes, sum2);
    store(out + j + 3 * kLanes, sum3);
  }
  for (; j < n; j += kLanes) {
    const std::int64_t width = least(kLanes, n - j);
    Vec total = set(0.0f);
    for (std::int64_t i = 0; i < k; ++i) total = fma(set(a[i * a_col]), load_first(b + i * b_row + j, width), total);
    store_first(out + j, total, width);
  }
}

// One row of `out`, B's columns contiguous: a dot product each, k by vectors.
inline void row_times_columns(const float* a, const float* b, std::int64_t b_col, std::int64_t n, std::int64_t k,
                              float* out) noexcept {
  for (std::int64_t j = 0; j < n; ++j, b += b_col) {
    Vec sum0 = set(0.0f), sum1 = sum0;
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
      sum0 = fma(load(a + i), load(b + i), sum0);
      sum1 = fma(load(a + i + kLanes), load(b + i + kLanes), sum1);
    }
    for (; i < k; i += kLanes) sum0 = fma(load_first(a + i, least(kLanes, k - i)), load_first(b + i, least(kLanes, k - i)), sum0);
    out[j] = static_cast<float>(sum(add(sum0, sum1)));
  }
}

inline void gemm(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const float*>(args.a);
  const auto* b = static_cast<const float*>(args.b);
  auto* out = static_cast<float*>(args.out);
  const bool columns = args.b_row == 1 && args.a_col == 1;
  if (args.k == 0 || (args.m <= kFewRows && (args.b_col == 1 || columns))) {
    for (std::int64_t m = 0; m < args.m; ++m) {
      if (args.b_col == 1 || args.k == 0)
        row_times_matrix(a + m * args.a_row, args.a_col, b, args.b_row, args.n, args.k, out + m * args.out_row);
      else
        row_times_columns(a + m * args.a_row, b, args.b_col, args.n, args.k, out + m * args.out_row);
    }
    return;
  }
  gemm_packed(args);
}

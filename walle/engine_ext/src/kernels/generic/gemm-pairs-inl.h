// Matrix products of float32 operands that are rounded to bfloat16 while blocks of them are packed, over the including
// instruction set's vec.h, with sums in float32. |error| <= (k + 3) * eps * (|a| @ |b|) per element, against exact arithmetic on
// the rounded operands, except that subnormal numbers may count as 0.

// The first `count` of the numbers `step` apart; the other lanes are 0. `count` may be negative, or more than there are lanes.
inline Vec load_apart(const float* p, std::int64_t step, std::int64_t count) noexcept {
  const std::int64_t width = count < 0 ? 0 : least(count, kLanes);
  if (step == 1) return load_first(p, width);
  float numbers[kLanes] = {};
  for (std::int64_t i = 0; i < width; ++i) numbers[i] = p[i * step];
  return load(numbers);
}

// Operands of the tile kernel as pairs of neighbours along k; the last pair of an odd depth has a 0.
struct PairOperands {
  static constexpr std::int64_t kGrain = 2;
  static bool reads_rows(const GemmArgs& args) noexcept { return false; }

  // packed[row * step + pair]
  static void pack_a(const float* a, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t depth, float* packed,
                     std::int64_t step) noexcept {
    const std::int64_t pairs = (depth + 1) / 2;
    if (row != 1 || col == 1) {
      for (std::int64_t i = 0; i < rows; ++i, a += row, packed += step)
        for (std::int64_t k = 0; k < depth; k += 2 * kLanes) {
          const Vec first = load_apart(a + k * col, col, depth - k),
                    second = load_apart(a + (k + kLanes) * col, col, depth - k - kLanes);
          for (std::int64_t line = 0; line < 2 * kLanes; line += kLine) __builtin_prefetch(a + row + k * col + line);
          store_first(packed + k / 2, narrowed(first, second), least(kLanes, pairs - k / 2));
        }
      return;
    }
    for (std::int64_t i = 0; i < rows; i += kLanes)  // neighbours are rows: blocks of them are transposed
      for (std::int64_t p = 0; p < pairs; p += kLanes) {
        const std::int64_t width = least(kLanes, pairs - p), height = least(kLanes, rows - i);
        Vec tile[kLanes];
        for (std::int64_t j = 0; j < kLanes; ++j) tile[j] = j < width ? pair_at(a + i, col, 1, p + j, depth, height) : set(0.0f);
        transpose_lanes(tile);
        for (std::int64_t r = 0; r < height; ++r) store_first(packed + (i + r) * step + p, tile[r], width);
      }
  }

  // The same of parts, whose borders may split a pair: each row is joined first.
  static void pack_parts_of_a(const GemmArgs& args, std::int64_t m, std::int64_t rows, std::int64_t k0, std::int64_t depth,
                              float* packed, std::int64_t step) noexcept {
    float joined[kGrain * kDepth];
    for (std::int64_t i = m; i < m + rows; ++i, packed += step) {
      each_part(args, k0, depth, [&](const float* from, std::int64_t row, std::int64_t count, std::int64_t to) {
        copy_rows(from + i * row, row, 1, count, joined + to, 0);
      });
      pack_a(joined, 0, 1, 1, depth, packed, step);
    }
  }

  // packed[pair][column], padded with zeros to `width` columns
  static void pack_b(const float* b, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns,
                     std::int64_t width, float* packed) noexcept {
    const std::int64_t pairs = (depth + 1) / 2;
    if (row != 1 || col == 1) {
      for (std::int64_t p = 0; p < pairs; ++p, packed += width)
        for (std::int64_t j = 0; j < width; j += kLanes) store(packed + j, pair_at(b + j * col, row, col, p, depth, columns - j));
      return;
    }
    for (std::int64_t j = 0; j < width; j += kLanes)  // neighbours are along k
      for (std::int64_t p = 0; p < pairs; p += kLanes) {
        Vec tile[kLanes];
        for (std::int64_t c = 0; c < kLanes; ++c) {
          const std::int64_t left = j + c < columns ? depth - 2 * p : 0;
          const float* from = b + (left > 0 ? (j + c) * col + 2 * p : 0);
          tile[c] = narrowed(load_apart(from, 1, left), load_apart(from + (left > kLanes ? kLanes : 0), 1, left - kLanes));
        }
        transpose_lanes(tile);
        for (std::int64_t r = 0; r < kLanes && p + r < pairs; ++r) store(packed + (p + r) * width + j, tile[r]);
      }
  }

  // The same of columns of one part, with nothing behind them.
  static void pack_part_of_b(const float* b, std::int64_t row, std::int64_t depth, std::int64_t columns, std::int64_t width,
                             float* packed) noexcept {
    for (std::int64_t p = 0; 2 * p < depth; ++p, packed += width)
      for (std::int64_t j = 0; j < columns; j += kLanes)
        store_first(packed + j, pair_at(b + j, row, 1, p, depth, columns - j), least(kLanes, columns - j));
  }

  static void multiply(const PanelArgs& tile) noexcept { panel_by<PairProduct>(tile); }

 private:
  // The pair `p` along k, of lanes `apart`: numbers 2p and 2p + 1 of each.
  static Vec pair_at(const float* from, std::int64_t step, std::int64_t apart, std::int64_t p, std::int64_t depth,
                     std::int64_t count) noexcept {
    const float* low = from + 2 * p * step;
    return paired(load_apart(low, apart, count), 2 * p + 1 < depth ? load_apart(low + step, apart, count) : set(0.0f));
  }
};

inline std::size_t gemm_pairs_scratch(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  return gemm_scratch_bytes(m, n, (k + 1) / 2);
}

// Products of few rows stay float32: they wait for the memory that they read, and rounding saves none. A piece of more rows is
// rounded as the whole: results are the same by any number of threads.
inline void gemm_pairs(const GemmArgs& args) noexcept {
  if (is_by_rows(args) && (args.k == 0 || args.rows <= kFewRows)) return gemm_by_rows(args);
  gemm_packed<PairOperands>(args);
}

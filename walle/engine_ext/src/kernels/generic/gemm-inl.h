// float32 matrix multiplication over the including instruction set's vec.h (see GemmArgs).
//
// Large products: blocks of B are packed into panels of the tile kernel (panel-inl.h), which reads A's rows in place, or from a
// packed copy where their elements are not contiguous or the rows are 4 KB apart. Few rows with B unpacked: rows of B are read
// once, nothing is packed.
//
// gemm_packed() is also the product of operands that are rounded while they are packed (gemm-pairs-inl.h).

inline constexpr std::int64_t kColumns = 2 * kLanes;
inline constexpr std::int64_t kDepth = 512;    // a panel of kDepth x kColumns of B and the matching rows of A stay in L2
inline constexpr std::int64_t kRowBlock = 84;  // a multiple of every tile height
inline constexpr std::int64_t kColumnBlock = 8 * kColumns;
inline constexpr std::int64_t kFewRows = 4;

inline std::int64_t least(std::int64_t a, std::int64_t b) noexcept { return a < b ? a : b; }
inline std::int64_t round_up(std::int64_t a, std::int64_t step) noexcept { return (a + step - 1) / step * step; }

// Rows whose distance is a multiple of 4 KB lie in one set of the first-level cache, and a tile's rows push each other out.
inline constexpr std::int64_t kOneSet = 1024;
// Distance of the rows of a copy of A.
inline std::int64_t packed_step(std::int64_t depth) noexcept { return depth % (kOneSet / 4) == 0 ? depth + 16 : depth; }

// Bytes for blocks of B and A; k counts elements of the tile kernel.
inline std::size_t gemm_scratch_bytes(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  const std::int64_t depth = least(k, kDepth);
  const std::int64_t elements = depth * round_up(least(n, kColumnBlock), kLanes) + least(m, kRowBlock) * packed_step(depth);
  return static_cast<std::size_t>(elements) * sizeof(float);
}

// Calls use(from, row, count, to) for the parts that have some of `columns` columns from `first` on: `count` of them, `to`
// columns further on.
template <class F>
void each_part(const GemmArgs& args, std::int64_t first, std::int64_t columns, F&& use) noexcept {
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < args.part_count; begin += args.parts[i++].columns) {
    const GemmPart& part = args.parts[i];
    const std::int64_t skipped = begin < first ? first - begin : 0, end = least(part.columns, first + columns - begin);
    if (skipped < end) use(part.at + skipped, part.row, end - skipped, begin + skipped - first);
  }
}

inline void copy_rows(const float* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns, float* to,
                      std::int64_t to_row) noexcept {
  for (; rows > 0; --rows, from += from_row, to += to_row)
    for (std::int64_t j = 0; j < columns; j += kLanes) {
      const std::int64_t width = least(kLanes, columns - j);
      store_first(to + j, load_first(from + j, width), width);
    }
}

// Operands of the tile kernel as floats, one for each k.
struct FloatOperands {
  static constexpr std::int64_t kGrain = 1;  // numbers along k in an element of the tile kernel

  // Whether rows of A are read where they lie. A copy pays where it is read for several panels.
  static bool reads_rows(const GemmArgs& args) noexcept {
    return args.a_col == 1 && (args.a_row % kOneSet != 0 || args.n <= kColumns);
  }

  // packed[k][column]: up to kColumns columns of B, padded with zeros to `width`, a multiple of kLanes.
  static void pack_b(const float* b, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns,
                     std::int64_t width, float* packed) noexcept {
    if (col == 1) {
      for (std::int64_t k = 0; k < depth; ++k, b += row, packed += width)
        for (std::int64_t j = 0; j < width; j += kLanes)
          store(packed + j, columns - j >= kLanes ? load(b + j) : load_first(b + j, columns - j));
      return;
    }
    if (row == 1) {
      transpose(b, col, packed, width, depth, columns);
      for (std::int64_t k = 0; k < depth && columns < width; ++k)
        for (std::int64_t j = columns; j < width; ++j) packed[k * width + j] = 0.0f;
      return;
    }
    for (std::int64_t j = 0; j < width; ++j)
      for (std::int64_t k = 0; k < depth; ++k) packed[k * width + j] = j < columns ? b[k * row + j * col] : 0.0f;
  }

  // The same of columns of one part, with nothing behind them.
  static void pack_part_of_b(const float* b, std::int64_t row, std::int64_t depth, std::int64_t columns, std::int64_t width,
                             float* packed) noexcept {
    copy_rows(b, row, depth, columns, packed, width);
  }

  // packed[row * step + k] of some rows of A.
  static void pack_a(const float* a, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t depth, float* packed,
                     std::int64_t step) noexcept {
    if (row == 1) return transpose(a, col, packed, step, rows, depth);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < depth; ++k) packed[i * step + k] = a[i * row + k * col];
  }

  // The same of parts.
  static void pack_parts_of_a(const GemmArgs& args, std::int64_t m, std::int64_t rows, std::int64_t k0, std::int64_t depth,
                              float* packed, std::int64_t step) noexcept {
    each_part(args, k0, depth, [&](const float* from, std::int64_t row, std::int64_t count, std::int64_t to) {
      copy_rows(from + m * row, row, rows, count, packed + to, step);
    });
  }

  static void multiply(const PanelArgs& tile) noexcept { panel(tile); }
};

// Columns of B, from column `first` of row `k0` on.
template <class Operands>
void pack_columns(const GemmArgs& args, std::int64_t k0, std::int64_t depth, std::int64_t first, std::int64_t columns,
                  std::int64_t width, float* packed) noexcept {
  if (!args.parts_of_b)
    return Operands::pack_b(static_cast<const float*>(args.b) + k0 * args.b_row + first * args.b_col, args.b_row, args.b_col,
                            depth, columns, width, packed);
  each_part(args, first, columns, [&](const float* from, std::int64_t row, std::int64_t count, std::int64_t to) {
    Operands::pack_part_of_b(from + k0 * row, row, depth, count, width, packed + to);
  });
  for (std::int64_t k = 0; k * Operands::kGrain < depth && columns < width; ++k)
    for (std::int64_t j = columns; j < width; ++j) packed[k * width + j] = 0.0f;
}

// Makes the tile read its rows of A, from row `m` and column `k0` on: where they lie, or from a copy.
template <class Operands>
void find_rows(const GemmArgs& args, std::int64_t m, std::int64_t k0, std::int64_t depth, PanelArgs& tile,
               float* packed) noexcept {
  const bool has_parts = args.part_count > 0 && !args.parts_of_b;
  const std::int64_t step = packed_step(tile.segments->length);
  if (has_parts) {
    Operands::pack_parts_of_a(args, m, tile.rows, k0, depth, packed, step);
  } else {
    const float* a = static_cast<const float*>(args.a) + m * args.a_row + k0 * args.a_col;
    if (Operands::reads_rows(args)) {
      tile.a = a;
      tile.a_step = args.a_row;
      return;
    }
    Operands::pack_a(a, args.a_row, args.a_col, tile.rows, depth, packed, step);
  }
  tile.a = packed;
  tile.a_step = step;
}

template <class Operands>
void gemm_packed(const GemmArgs& args) noexcept {
  constexpr std::int64_t kGrain = Operands::kGrain;
  auto* out = static_cast<float*>(args.out);
  auto* packed_b = static_cast<float*>(args.scratch);
  float* packed_a = packed_b + least((args.k + kGrain - 1) / kGrain, kDepth) * round_up(least(args.n, kColumnBlock), kLanes);
  for (std::int64_t n0 = 0; n0 < args.n; n0 += kColumnBlock) {
    const std::int64_t columns = least(kColumnBlock, args.n - n0);
    for (std::int64_t k0 = 0; k0 < args.k; k0 += kDepth * kGrain) {
      const std::int64_t depth = least(kDepth * kGrain, args.k - k0);
      const Segment segment{0, (depth + kGrain - 1) / kGrain};
      for (std::int64_t n = 0; n < columns; n += kColumns) {
        const std::int64_t real = least(kColumns, columns - n);
        pack_columns<Operands>(args, k0, depth, n0 + n, real, round_up(real, kLanes), packed_b + n * segment.length);
      }
      for (std::int64_t m = 0; m < args.m; m += kRowBlock) {
        PanelArgs tile;
        tile.rows = least(kRowBlock, args.m - m);
        tile.segments = &segment;
        tile.segment_count = 1;
        find_rows<Operands>(args, m, k0, depth, tile, packed_a);
        tile.out_step = args.out_row;
        tile.out_block = kLanes;
        tile.accumulate = args.accumulate || k0 > 0;
        if (k0 + depth == args.k) tile.finish.low = args.finish.low, tile.finish.high = args.finish.high;
        for (std::int64_t n = 0; n < columns; n += kColumns) {
          const std::int64_t real = least(kColumns, columns - n);
          tile.blocks = real > kLanes ? 2 : 1;
          tile.width = real - (tile.blocks - 1) * kLanes;
          tile.w = packed_b + n * segment.length;
          tile.out = out + m * args.out_row + n0 + n;
          if (args.finish.bias != nullptr) tile.finish.bias = args.finish.bias + n0 + n;
          Operands::multiply(tile);
        }
      }
    }
  }
}

// One row of `out`, B's rows contiguous: four vectors of columns at a time, then one, the last one masked.
inline void row_times_matrix(const float* a, std::int64_t a_col, const float* b, std::int64_t b_row, std::int64_t n,
                             std::int64_t k, float* out, bool accumulate, const Finish& finish) noexcept {
  std::int64_t j = 0;
  const float* first = accumulate ? out : finish.bias;
  const Vec low = set(finish.low), high = set(finish.high);
  const auto start = [&](std::int64_t at) { return first == nullptr ? set(0.0f) : load(first + at); };
  const auto put = [&](std::int64_t at, Vec sum) { store(out + at, min_or_second(high, max_or_second(low, sum))); };
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    Vec sum0 = start(j), sum1 = start(j + kLanes), sum2 = start(j + 2 * kLanes), sum3 = start(j + 3 * kLanes);
    for (std::int64_t i = 0; i < k; ++i) {
      const Vec factor = set(a[i * a_col]);
      const float* row = b + i * b_row + j;
      sum0 = fma(factor, load(row), sum0);
      sum1 = fma(factor, load(row + kLanes), sum1);
      sum2 = fma(factor, load(row + 2 * kLanes), sum2);
      sum3 = fma(factor, load(row + 3 * kLanes), sum3);
    }
    put(j, sum0);
    put(j + kLanes, sum1);
    put(j + 2 * kLanes, sum2);
    put(j + 3 * kLanes, sum3);
  }
  for (; j < n; j += kLanes) {
    const std::int64_t width = least(kLanes, n - j);
    Vec total = first == nullptr ? set(0.0f) : load_first(first + j, width);
    for (std::int64_t i = 0; i < k; ++i) total = fma(set(a[i * a_col]), load_first(b + i * b_row + j, width), total);
    store_first(out + j, min_or_second(high, max_or_second(low, total)), width);
  }
}

// One row of `out`, B's columns contiguous: one dot product per column, vectorised over k.
inline void row_times_columns(const float* a, const float* b, std::int64_t b_col, std::int64_t n, std::int64_t k, float* out,
                              bool accumulate, const Finish& finish) noexcept {
  const float* first = accumulate ? out : finish.bias;
  for (std::int64_t j = 0; j < n; ++j, b += b_col) {
    Vec sum0 = set(0.0f), sum1 = sum0;
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
      sum0 = fma(load(a + i), load(b + i), sum0);
      sum1 = fma(load(a + i + kLanes), load(b + i + kLanes), sum1);
    }
    for (; i < k; i += kLanes) sum0 = fma(load_first(a + i, least(kLanes, k - i)), load_first(b + i, least(kLanes, k - i)), sum0);
    const float total = static_cast<float>(sum(add(sum0, sum1))) + (first == nullptr ? 0.0f : first[j]);
    out[j] = total < finish.low ? finish.low : total > finish.high ? finish.high : total;
  }
}

// Products of depth 0, and those of few rows by an operand that is read where it lies.
inline bool is_by_rows(const GemmArgs& args) noexcept {
  const bool columns = args.b_row == 1 && args.a_col == 1;
  return args.part_count == 0 && (args.k == 0 || (args.m <= kFewRows && (args.b_col == 1 || columns)));
}
inline void gemm_by_rows(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const float*>(args.a);
  const auto* b = static_cast<const float*>(args.b);
  auto* out = static_cast<float*>(args.out);
  for (std::int64_t m = 0; m < args.m; ++m) {
    if (args.b_col == 1 || args.k == 0)
      row_times_matrix(a + m * args.a_row, args.a_col, b, args.b_row, args.n, args.k, out + m * args.out_row, args.accumulate,
                       args.finish);
    else
      row_times_columns(a + m * args.a_row, b, args.b_col, args.n, args.k, out + m * args.out_row, args.accumulate, args.finish);
  }
}

inline void gemm(const GemmArgs& args) noexcept {
  if (is_by_rows(args)) return gemm_by_rows(args);
  gemm_packed<FloatOperands>(args);
}

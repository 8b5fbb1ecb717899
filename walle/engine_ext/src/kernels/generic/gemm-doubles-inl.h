// float64 matrix multiplication over the including instruction set's vec.h (see GemmArgs), in blocks as gemm-inl.h: panels of two
// vectors of B's columns stay in L2, tiles of rows by two vectors of sums in registers.

inline constexpr std::int64_t kDoubles = kLanes / 2, kDoubleColumns = 2 * kDoubles;
inline constexpr std::int64_t kDoubleDepth = 256, kDoubleColumnBlock = 16 * kDoubleColumns;

// A tile of B: `depth` rows of kDoubleColumns columns, `step` apart, of which `width` are stored.
struct DoubleTile {
  const double* b;
  std::int64_t step, depth, width;
};

// out[row][column] = sum_k a[row][k] * b[k][column] for kRows rows, added to what is there with `accumulate`.
template <int kRows>
void double_tile(const double* a, std::int64_t a_step, const DoubleTile& tile, double* out, std::int64_t out_step,
                 bool accumulate) noexcept {
  DoubleVec sums[kRows][2];
  double edge[kRows][kDoubleColumns];  // tile at the end of the columns of `out`
  const bool cut = tile.width < kDoubleColumns;
  double* const to = cut ? &edge[0][0] : out;
  const std::int64_t to_step = cut ? kDoubleColumns : out_step;
  if (cut && accumulate)
    for (int row = 0; row < kRows; ++row)
      for (std::int64_t j = 0; j < kDoubleColumns; ++j) edge[row][j] = j < tile.width ? out[row * out_step + j] : 0.0;
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (int block = 0; block < 2; ++block)
      sums[row][block] = accumulate ? load(to + row * to_step + block * kDoubles) : set_double(0.0);
  const double* b = tile.b;
  for (std::int64_t k = 0; k < tile.depth; ++k, b += tile.step) {
    const DoubleVec left = load(b), right = load(b + kDoubles);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const DoubleVec factor = set_double(a[row * a_step + k]);
      sums[row][0] = fma(factor, left, sums[row][0]);
      sums[row][1] = fma(factor, right, sums[row][1]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (int block = 0; block < 2; ++block) store(to + row * to_step + block * kDoubles, sums[row][block]);
  if (cut)
    for (int row = 0; row < kRows; ++row)
      for (std::int64_t j = 0; j < tile.width; ++j) out[row * out_step + j] = edge[row][j];
}

using DoubleTileFn = void (*)(const double* a, std::int64_t a_step, const DoubleTile& tile, double* out, std::int64_t out_step,
                              bool accumulate) noexcept;
template <class Heights>
struct DoubleTiles;
template <int... kRowsLessOne>
struct DoubleTiles<std::integer_sequence<int, kRowsLessOne...>> {
  static constexpr DoubleTileFn of[] = {&double_tile<kRowsLessOne + 1>...};
};

// All rows of A by one tile of B, in heights as equal as possible.
inline void double_rows(std::int64_t rows, const double* a, std::int64_t a_step, const DoubleTile& tile, double* out,
                        std::int64_t out_step, bool accumulate) noexcept {
  const DoubleTileFn* tiles = DoubleTiles<std::make_integer_sequence<int, kPairRows>>::of;
  for (std::int64_t count = (rows + kPairRows - 1) / kPairRows; count > 0; --count) {
    const std::int64_t height = (rows + count - 1) / count;
    tiles[height - 1](a, a_step, tile, out, out_step, accumulate);
    a += height * a_step, out += height * out_step, rows -= height;
  }
}

inline std::size_t double_gemm_scratch(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  const std::int64_t depth = least(k, kDoubleDepth);
  return static_cast<std::size_t>(depth * (round_up(least(n, kDoubleColumnBlock), kDoubleColumns) + least(m, kRowBlock))) *
         sizeof(double);
}

// packed[k][column] of up to kDoubleColumns columns of B, the rest zeros.
inline void pack_doubles(const double* b, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns,
                         double* packed) noexcept {
  if (col == 1 && columns == kDoubleColumns) {
    for (std::int64_t k = 0; k < depth; ++k, b += row, packed += kDoubleColumns) {
      store(packed, load(b));
      store(packed + kDoubles, load(b + kDoubles));
    }
    return;
  }
  for (std::int64_t j = 0; j < kDoubleColumns; ++j)
    for (std::int64_t k = 0; k < depth; ++k) packed[k * kDoubleColumns + j] = j < columns ? b[k * row + j * col] : 0.0;
}

// Few rows of A, columns of B contiguous: a product of vectors for each element.
inline void double_dots(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const double*>(args.a);
  const auto* b = static_cast<const double*>(args.b);
  for (std::int64_t m = 0; m < args.m; ++m)
    for (std::int64_t n = 0; n < args.n; ++n) {
      const double *x = a + m * args.a_row, *y = b + n * args.b_col;
      DoubleVec sums[4];
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) sums[part] = set_double(0.0);
      std::int64_t k = 0;
      for (; k + 4 * kDoubles <= args.k; k += 4 * kDoubles)
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part)
          sums[part] = fma(load(x + k + part * kDoubles), load(y + k + part * kDoubles), sums[part]);
      double parts[4 * kDoubles], total = 0.0;
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) store(parts + part * kDoubles, sums[part]);
      for (const double part : parts) total += part;
      for (; k < args.k; ++k) total += x[k] * y[k];
      double& to = static_cast<double*>(args.out)[m * args.out_row + n];
      to = args.accumulate ? to + total : total;
    }
}

inline void double_gemm(const GemmArgs& args) noexcept {
  if (args.m <= kFewRows && args.b_row == 1 && args.b_col != 1 && args.a_col == 1) return double_dots(args);
  const auto* a = static_cast<const double*>(args.a);
  const auto* b = static_cast<const double*>(args.b);
  auto* out = static_cast<double*>(args.out);
  auto* packed_b = static_cast<double*>(args.scratch);
  double* packed_a = packed_b + least(args.k, kDoubleDepth) * round_up(least(args.n, kDoubleColumnBlock), kDoubleColumns);
  const bool in_place = args.m <= kFewRows && args.b_col == 1;  // B is read once, and need not be packed for that
  for (std::int64_t n0 = 0; n0 < args.n; n0 += kDoubleColumnBlock) {
    const std::int64_t columns = least(kDoubleColumnBlock, args.n - n0);
    std::int64_t k0 = 0;
    do {  // once for k = 0 too, which sets `out` to 0
      const std::int64_t depth = least(kDoubleDepth, args.k - k0);
      const double* first = b + k0 * args.b_row + n0 * args.b_col;
      for (std::int64_t n = 0; n < columns; n += kDoubleColumns)
        if (!in_place || columns - n < kDoubleColumns)
          pack_doubles(first + n * args.b_col, args.b_row, args.b_col, depth, least(kDoubleColumns, columns - n),
                       packed_b + n * depth);
      for (std::int64_t m = 0; m < args.m; m += kRowBlock) {
        const std::int64_t rows = least(kRowBlock, args.m - m);
        const double* from = a + m * args.a_row + k0 * args.a_col;
        std::int64_t step = args.a_row;
        if (args.a_col != 1) {
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t k = 0; k < depth; ++k) packed_a[i * depth + k] = from[i * args.a_row + k * args.a_col];
          from = packed_a;
          step = depth;
        }
        for (std::int64_t n = 0; n < columns; n += kDoubleColumns) {
          const std::int64_t width = least(kDoubleColumns, columns - n);
          const bool direct = in_place && width == kDoubleColumns;
          const DoubleTile tile{direct ? first + n : packed_b + n * depth, direct ? args.b_row : kDoubleColumns, depth, width};
          double_rows(rows, from, step, tile, out + m * args.out_row + n0 + n, args.out_row, args.accumulate || k0 > 0);
        }
      }
      k0 += kDoubleDepth;
    } while (k0 < args.k);
  }
}

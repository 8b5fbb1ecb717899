// Matrix products that stop early when their work is cancelled (see core/stop.h).
#pragma once
#include <algorithm>

#include "core/stop.h"
#include "kernels/table.h"

namespace walle {

// Pieces of a product whose work is some ten milliseconds. Kernels by vectors pack blocks of columns of B once for all rows, so
// that pieces of columns cost them nothing; the others go through B for each row. What is cut last costs time, and is cut only
// where the rest does not do.
struct ProductPieces {
  std::int64_t rows, columns, depth;
  double work;  // work of a whole piece, in elements of other loops

  static ProductPieces of(const Gemm& gemm, const GemmArgs& args) noexcept {
    const bool by_vectors = gemm.scratch_bytes(args.m, args.n, args.k) > 0;
    constexpr std::int64_t kColumns = 256, kLeastDepth = 1 << 14;  // kColumns: a multiple of every kernel's block
    const std::int64_t least_rows = by_vectors ? 168 : 1;          // products of 168 rows take much longer than packing B again
    const double most = by_vectors ? 0x1p28 : 0x1p24;              // multiplications
    const double packing = by_vectors ? 32 : 0;                    // in rows
    ProductPieces pieces{std::max<std::int64_t>(args.m, 1), std::max<std::int64_t>(args.n, 1), std::max<std::int64_t>(args.k, 1),
                         0};
    const auto rows = [&] { return static_cast<double>(pieces.rows) + packing; };
    const auto columns = [&] { return static_cast<double>(pieces.columns); };
    const auto depth = [&] { return static_cast<double>(pieces.depth); };
    if (!by_vectors) pieces.rows = fitting(pieces.rows, least_rows, most / columns() / depth());
    pieces.columns = fitting(pieces.columns, kColumns, most / rows() / depth());
    if (by_vectors) pieces.rows = fitting(pieces.rows, least_rows, most / columns() / depth() - packing);
    if (gemm.accumulates) pieces.depth = fitting(pieces.depth, kLeastDepth, most / rows() / columns());
    // A kernel by vectors does about eight multiplications in the time of one element of other loops.
    pieces.work = rows() * columns() * depth() / (by_vectors ? 8 : 1);
    return pieces;
  }

 private:
  // Returns `all` if it is at most `most`, else the multiple of `step` below `most`, and `step` at least.
  static std::int64_t fitting(std::int64_t all, std::int64_t step, double most) noexcept {
    if (static_cast<double>(all) <= most) return all;
    return std::min(all, std::max(step, static_cast<std::int64_t>(std::max(most, 0.0)) / step * step));
  }
};

// Pieces of a product's rows that give the bits of the whole. Kernels by vectors work on blocks of kBlock rows; in one of fewer
// than kLeast, of which tiles are low, sums may have another order than in larger ones.
struct RowPieces {
  static constexpr std::int64_t kBlock = 84, kLeast = 16;  // kBlock: a multiple of every tile's height, as the kernels have it

  // Return the first row of a piece, or `rows` behind the last one. A piece may be empty.
  static std::int64_t begin(std::int64_t rows, std::int64_t pieces, std::int64_t piece) noexcept {
    if (piece == pieces) return rows;
    // The last piece ends as the whole product does.
    const std::int64_t last = nearest(rows * (pieces - 1) / pieces, 0, rows, [rows](std::int64_t at) {
      if (has_few(at) || rows - at < kLeast) return false;
      return has_few(rows) ? (rows - at) % kBlock == rows % kBlock : !has_few(rows - at);
    });
    std::int64_t first = 0;
    for (std::int64_t i = 1; i <= piece && i + 1 < pieces; ++i)
      first =
          nearest(rows * i / pieces, first, last, [&](std::int64_t at) { return !has_few(at - first) && !has_few(last - at); });
    return piece + 1 == pieces ? last : first;
  }

 private:
  static bool has_few(std::int64_t rows) noexcept { return rows % kBlock != 0 && rows % kBlock < kLeast; }

  // Return the row in [first, last] nearest to `wanted` that fits; `first` where none does.
  template <class Fits>
  static std::int64_t nearest(std::int64_t wanted, std::int64_t first, std::int64_t last, const Fits& fits) noexcept {
    for (std::int64_t distance = 0; distance <= kBlock; ++distance)
      for (const std::int64_t at : {wanted - distance, wanted + distance})
        if (at >= first && at <= last && fits(at)) return at;
    return first;
  }
};

// Runs a product like gemm.run, in pieces where it takes long. `item` is an element's size in bytes.
inline void run_product(const Gemm& gemm, const GemmArgs& args, std::int64_t item, StopPoll& poll) noexcept {
  const ProductPieces most = ProductPieces::of(gemm, args);
  const auto moved = [item](const void* from, std::int64_t elements) {
    return static_cast<const std::byte*>(from) + elements * item;
  };
  const auto work = static_cast<std::int64_t>(std::min(most.work, 1e15));
  GemmArgs piece = args;
  if (piece.rows == 0) piece.rows = args.m;
  for (std::int64_t column = 0; column < args.n; column += most.columns) {
    piece.n = std::min(most.columns, args.n - column);
    if (args.finish.bias != nullptr) piece.finish.bias = args.finish.bias + column;
    for (std::int64_t row = 0; row < args.m; row += most.rows) {
      piece.m = std::min(most.rows, args.m - row);
      piece.out = static_cast<std::byte*>(args.out) + (row * args.out_row + column) * item;
      std::int64_t depth = 0;
      do {  // a product of depth 0 is zero
        piece.k = std::min(most.depth, args.k - depth);
        if (!poll.proceed(work)) return;
        piece.a = moved(args.a, row * args.a_row + depth * args.a_col);
        piece.b = moved(args.b, depth * args.b_row + column * args.b_col);
        piece.accumulate = depth > 0;
        const bool last = depth + piece.k == args.k;
        piece.finish.low = last ? args.finish.low : Finish().low;
        piece.finish.high = last ? args.finish.high : Finish().high;
        gemm.run(piece);
        depth += piece.k;
      } while (depth < args.k);
    }
  }
}

}  // namespace walle

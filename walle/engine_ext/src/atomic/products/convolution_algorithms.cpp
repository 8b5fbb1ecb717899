// The algorithms of convolution.
#include <algorithm>
#include <cstring>

#include "atomic/products/convolution.h"
#include "atomic/products/products.h"
#include "geometry/raster.h"

namespace walle {

namespace {

std::int64_t item_of(const ConvShape& shape) { return static_cast<std::int64_t>(item_size(shape.dtype)); }

double lanes(const ConvShape& shape, const Table& table) { return shape.dtype == DType::f32 ? table.lanes : 1; }

double elements_out(const ConvShape& shape) {
  return static_cast<double>(shape.batch * shape.groups * shape.out_channels) * static_cast<double>(shape.window.out_count());
}

// out[channel of the group, plane] += w * x, row by row, for one input channel and one plane of outputs.
void add_channel(const ConvShape& shape, const Table& table, const std::byte* x, const std::byte* w, std::byte* out) noexcept {
  const Window& win = shape.window;
  const std::int64_t item = item_of(shape);
  const AxpyFn axpy = table.axpy[shape.type()];
  for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz) {
    const auto [z_first, z_last] = win.valid(0, kz);
    for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky) {
      const auto [y_first, y_last] = win.valid(1, ky);
      for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx, w += item) {
        const auto [x_first, x_last] = win.valid(2, kx);
        if (x_first == x_last) continue;
        for (std::int64_t z = z_first; z < z_last; ++z)
          for (std::int64_t y = y_first; y < y_last; ++y) {
            const std::int64_t from =
                (win.source(0, z, kz) * win.in[1] + win.source(1, y, ky)) * win.in[2] + win.source(2, x_first, kx);
            const std::int64_t to = (z * win.out[1] + y) * win.out[2] + x_first;
            axpy(w, x + from * item, win.stride[2], out + to * item, x_last - x_first);
          }
      }
    }
  }
}

std::size_t no_scratch(const ConvShape&, const Table&) { return 0; }

// Direct: the meaning. Every weight times the part of its input plane that it meets.
bool direct_applies(const ConvShape& shape, const Table& table) { return table.axpy[shape.type()] != nullptr; }
double direct_workload(const ConvShape& shape, const Table& table) {
  // A row is read and written for each multiplication; strided rows are read one by one.
  const double rows = shape.window.stride[2] == 1 ? lanes(shape, table) : 1;
  return 3 * shape.multiplications() / rows;
}
void direct_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const std::int64_t item = item_of(shape), in = shape.window.in_count(), plane = shape.window.out_count(),
                     taps = shape.window.taps(), channels = shape.groups * shape.out_channels;
  team.each(
      shape.batch * channels,
      [&](std::int64_t at, int) {
        const std::int64_t n = at / channels, m = at % channels;
        std::byte* to = places.out + at * plane * item;
        std::memset(to, 0, static_cast<std::size_t>(plane * item));
        for (std::int64_t c = 0; c < shape.in_channels; ++c) {
          const std::int64_t channel = (n * shape.groups + m / shape.out_channels) * shape.in_channels + c;
          add_channel(shape, table, places.x + channel * in * item, places.w + (m * shape.in_channels + c) * taps * item, to);
        }
      },
      2 * shape.multiplications());
}

// Depthwise: one input channel each; a row of outputs gathers all its taps while it lies in cache.
bool depthwise_applies(const ConvShape& shape, const Table& table) {
  return shape.in_channels == 1 && table.axpy[shape.type()] != nullptr;
}
double depthwise_workload(const ConvShape& shape, const Table& table) {
  const double rows = shape.window.stride[2] == 1 ? lanes(shape, table) : 1;
  return (2 * shape.multiplications() + elements_out(shape)) / rows;
}
void depthwise_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const Window& win = shape.window;
  const std::int64_t item = item_of(shape), channels = shape.groups * shape.out_channels;
  const AxpyFn axpy = table.axpy[shape.type()];
  team.each(
      shape.batch * channels,
      [&](std::int64_t at, int) {
        const std::int64_t n = at / channels, m = at % channels;
        const std::byte* from = places.x + (n * shape.groups + m / shape.out_channels) * win.in_count() * item;
        const std::byte* weights = places.w + m * win.taps() * item;
        std::byte* out = places.out + at * win.out_count() * item;
        for (std::int64_t z = 0; z < win.out[0]; ++z)
          for (std::int64_t y = 0; y < win.out[1]; ++y, out += win.out[2] * item) {
            std::memset(out, 0, static_cast<std::size_t>(win.out[2] * item));
            for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz) {
              const std::int64_t depth = win.source(0, z, kz);
              if (depth < 0 || depth >= win.in[0]) continue;
              for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky) {
                const std::int64_t row = win.source(1, y, ky);
                if (row < 0 || row >= win.in[1]) continue;
                for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
                  const auto [first, last] = win.valid(2, kx);
                  axpy(weights + ((kz * win.kernel[1] + ky) * win.kernel[2] + kx) * item,
                       from + ((depth * win.in[1] + row) * win.in[2] + win.source(2, first, kx)) * item, win.stride[2],
                       out + first * item, last - first);
                }
              }
            }
          }
      },
      2 * shape.multiplications());
}

// One matrix product a group: rows [first, last) of weights [out_channels, k] times a matrix [k, outputs] of x as it lies, or of
// columns.
void multiply(const ConvShape& shape, const Table& table, const std::byte* w, const std::byte* columns, std::byte* out,
              std::byte* scratch, std::int64_t k, std::int64_t first, std::int64_t last, StopPoll poll) noexcept {
  const std::int64_t item = item_of(shape);
  GemmArgs args;
  args.m = last - first;
  args.n = shape.window.out_count();
  args.k = k;
  args.a = w + first * k * item;
  args.a_row = k;
  args.a_col = 1;
  args.b = columns;
  args.b_row = args.n;
  args.b_col = 1;
  args.out = out + first * args.n * item;
  args.out_row = args.n;
  args.scratch = scratch;
  run_product(table.gemm[shape.type()], args, item, poll);
}

// In how many pieces a team shares the rows of one product, where it has not enough products to share.
std::int64_t row_pieces(const Team& team, const ConvShape& shape, std::int64_t products) noexcept {
  return products >= team.size() ? 1 : std::clamp<std::int64_t>(team.size(), 1, std::max<std::int64_t>(1, shape.out_channels));
}

// A kernel of one tap, without stride or pads: x is the matrix.
bool pointwise_applies(const ConvShape& shape, const Table& table) {
  const Window& win = shape.window;
  return win.taps() == 1 && win.in == win.out && win.begin == Window::Axes{0, 0, 0} && win.stride == Window::Axes{1, 1, 1} &&
         table.gemm[shape.type()].run != nullptr;
}
std::size_t pointwise_scratch(const ConvShape& shape, const Table& table) {
  return table.gemm[shape.type()].scratch_bytes(shape.out_channels, shape.window.out_count(), shape.in_channels);
}
double pointwise_workload(const ConvShape& shape, const Table& table) {
  return (shape.multiplications() + elements_out(shape)) / lanes(shape, table);
}
void pointwise_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const std::int64_t item = item_of(shape), plane = shape.window.out_count(), products = shape.batch * shape.groups;
  const std::int64_t pieces = row_pieces(team, shape, products);
  const StopPoll poll;
  team.each(
      products * pieces,
      [&](std::int64_t unit, int member) {
        const std::int64_t product = unit / pieces, piece = unit % pieces, g = product % shape.groups;
        multiply(shape, table, places.w + g * shape.out_channels * shape.in_channels * item,
                 places.x + product * shape.in_channels * plane * item, places.out + product * shape.out_channels * plane * item,
                 places.scratch + member * places.scratch_bytes, shape.in_channels, shape.out_channels * piece / pieces,
                 shape.out_channels * (piece + 1) / pieces, poll);
      },
      2 * shape.multiplications());
}

// im2col: a region for each tap moves what it meets to its rows of a matrix of columns; then one matrix product.
bool columns_apply(const ConvShape& shape, const Table& table) {
  std::int64_t bytes = item_of(shape);
  for (const std::int64_t dim : {shape.in_channels, shape.window.taps(), shape.window.out_count()})
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return false;
  return table.gemm[shape.type()].run != nullptr && static_cast<std::size_t>(bytes) <= storage_limit();
}
std::size_t columns_bytes(const ConvShape& shape) {
  const std::int64_t bytes = shape.in_channels * shape.window.taps() * shape.window.out_count() * item_of(shape);
  return static_cast<std::size_t>((bytes / 64 + 1) * 64);
}
std::size_t columns_scratch(const ConvShape& shape, const Table& table) {
  return columns_bytes(shape) + table.gemm[shape.type()].scratch_bytes(shape.out_channels, shape.window.out_count(),
                                                                       shape.in_channels * shape.window.taps());
}
double columns_workload(const ConvShape& shape, const Table& table) {
  const double moved = static_cast<double>(shape.batch * shape.groups * shape.in_channels * shape.window.taps()) *
                       static_cast<double>(shape.window.out_count());
  return (shape.multiplications() + elements_out(shape)) / lanes(shape, table) +
         moved / (shape.window.stride[2] == 1 ? lanes(shape, table) : 1);
}
// The columns of one group of one image, by one tap. Their border is 0 already, and stays so: all write the same places.
void put_tap(const ConvShape& shape, const std::byte* x, std::byte* columns, std::int64_t tap) noexcept {
  const Window& win = shape.window;
  const std::int64_t plane = win.out_count();
  const std::int64_t kx = tap % win.kernel[2], ky = tap / win.kernel[2] % win.kernel[1], kz = tap / win.kernel[2] / win.kernel[1];
  const auto [z0, z1] = win.valid(0, kz);
  const auto [y0, y1] = win.valid(1, ky);
  const auto [x0, x1] = win.valid(2, kx);
  if (z0 == z1 || y0 == y1 || x0 == x1) return;
  // Made by hand: canonical already but for axes of size 1, and inside both tensors by what valid() says.
  Region region;
  region.axes = 4;
  region.size = {shape.in_channels, z1 - z0, y1 - y0, x1 - x0};
  region.src.stride = {win.in_count(), win.stride[0] * win.in[1] * win.in[2], win.stride[1] * win.in[2], win.stride[2]};
  region.src.offset = (win.source(0, z0, kz) * win.in[1] + win.source(1, y0, ky)) * win.in[2] + win.source(2, x0, kx);
  region.dst.stride = {win.taps() * plane, win.out[1] * win.out[2], win.out[2], 1};
  region.dst.offset = tap * plane + (z0 * win.out[1] + y0) * win.out[2] + x0;
  raster(region, x, columns, static_cast<std::size_t>(item_of(shape)));
}

// A member for each product; a team that has more members than there are products shares each, by taps and then by rows.
void columns_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const Window& win = shape.window;
  const std::int64_t item = item_of(shape), plane = win.out_count(), taps = win.taps(), k = shape.in_channels * taps;
  const std::int64_t products = shape.batch * shape.groups, pieces = row_pieces(team, shape, products);
  const auto columns_of = [&](int member) { return places.scratch + member * places.scratch_bytes; };
  const auto rest_of = [&](int member) { return columns_of(member) + columns_bytes(shape); };
  const auto from = [&](std::int64_t product) { return places.x + product * shape.in_channels * win.in_count() * item; };
  const StopPoll poll;
  const auto multiply_piece = [&](std::int64_t product, std::int64_t piece, const std::byte* columns, std::byte* scratch) {
    multiply(shape, table, places.w + product % shape.groups * shape.out_channels * k * item, columns,
             places.out + product * shape.out_channels * plane * item, scratch, k, shape.out_channels * piece / pieces,
             shape.out_channels * (piece + 1) / pieces, poll);
  };
  if (win.padded())
    for (int member = 0; member < (pieces > 1 ? 1 : team.size()); ++member)
      std::memset(columns_of(member), 0, static_cast<std::size_t>(k * plane * item));
  const double operations = 2 * shape.multiplications();
  if (pieces == 1) {
    team.each(
        products,
        [&](std::int64_t product, int member) {
          for (std::int64_t tap = 0; tap < taps; ++tap) put_tap(shape, from(product), columns_of(member), tap);
          multiply_piece(product, 0, columns_of(member), rest_of(member));
        },
        operations);
    return;
  }
  for (std::int64_t product = 0; product < products; ++product) {
    const double share = operations / static_cast<double>(products);
    team.each(taps, [&](std::int64_t tap, int) { put_tap(shape, from(product), columns_of(0), tap); }, share);
    team.each(
        pieces, [&](std::int64_t piece, int member) { multiply_piece(product, piece, columns_of(0), rest_of(member)); }, share);
  }
}

}  // namespace

double ConvShape::multiplications() const noexcept {
  return static_cast<double>(batch * groups) * static_cast<double>(out_channels * in_channels) *
         static_cast<double>(window.taps()) * static_cast<double>(window.out_count());
}

std::span<const ConvAlgorithm> conv_algorithms() noexcept {
  static constexpr ConvAlgorithm table[] = {
      {"1x1 GEMM", &pointwise_applies, &pointwise_scratch, &pointwise_workload, &pointwise_run},
      {"depthwise", &depthwise_applies, &no_scratch, &depthwise_workload, &depthwise_run},
      {"im2col GEMM", &columns_apply, &columns_scratch, &columns_workload, &columns_run},
      {"direct", &direct_applies, &no_scratch, &direct_workload, &direct_run},
  };
  return table;
}

const ConvAlgorithm& choose_algorithm(const ConvShape& shape, const Table& table, std::string_view name) {
  const ConvAlgorithm* best = nullptr;
  for (const ConvAlgorithm& algorithm : conv_algorithms()) {
    if (!name.empty() && algorithm.name != name) continue;
    if (!algorithm.applies(shape, table)) continue;
    if (best == nullptr || algorithm.workload(shape, table) < best->workload(shape, table)) best = &algorithm;
  }
  if (best == nullptr)
    throw Error(ErrorKind::unsupported, name.empty()
                                            ? std::string("no algorithm of Conv takes ") + std::string(dtype_name(shape.dtype))
                                            : "the algorithm '" + std::string(name) + "' of Conv does not apply here");
  return *best;
}

}  // namespace walle

// Convolution of plain layouts, of any dtype and by computed weights too: direct, depthwise, 1x1 and im2col with a matrix
// product.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "atomic/product_pieces.h"
#include "atomic/products/convolution.h"
#include "geometry/raster.h"

namespace walle {

namespace {

// Where the operands lie, and `scratch_bytes` of scratch for each member of the team, one behind the other.
struct ConvPlaces {
  const std::byte *x, *w;
  std::byte *out, *scratch;
  std::int64_t scratch_bytes;
};

std::int64_t item_of(const ConvShape& shape) { return static_cast<std::int64_t>(item_size(shape.dtype)); }

constexpr double kFloatBytes = sizeof(float);

// Kernels of float32 take vectors, all others one element at a time.
double elementwise(const ConvProblem& problem) { return problem.shape.dtype == DType::f32 ? 1 : problem.table->lanes; }

// Beginning a row, or a plane, took 12 ns: the time of moving these bytes.
constexpr double kRowBytes = 512;

// Bytes moved by an epilogue after the sums, plane by plane: of a bias and a bound, as most convolutions have.
double epilogue_bytes(const ConvProblem& problem) {
  constexpr double kPasses = 2;
  const auto planes = static_cast<double>(problem.shape.batch * problem.channels_out());
  return kPasses * planes * (2 * kFloatBytes * static_cast<double>(problem.shape.window.out_count()) + kRowBytes);
}

// Multiplications of rows of x by one weight each, whatever the length of a row. Strided rows took up to kStrided times as long
// as others (planes of 14 x 14 to 200 x 200, avx512).
Work row_work(const ConvProblem& problem) {
  constexpr double kStrided = 4;
  const Window& win = problem.shape.window;
  const double multiplications = problem.shape.multiplications(), lanes = problem.table->lanes;
  Work work;
  work.lanes = 2 * multiplications * std::max(elementwise(problem), win.stride[2] == 1 ? 1.0 : std::min(kStrided, lanes));
  work.moved = kRowBytes * multiplications / std::max(1.0, static_cast<double>(win.out[2])) + epilogue_bytes(problem);
  return work;
}

// Whether products round their operands to bfloat16.
bool rounds(const ConvProblem& problem) { return problem.shape.dtype == DType::f32 && problem.table->bfloat16 != nullptr; }
double& products_of(Work& work, const ConvProblem& problem) { return rounds(problem) ? work.pairs : work.panel; }

// Bytes moved by products that round the weights, for each block of columns.
double rounded_bytes(const ConvProblem& problem, std::int64_t products, std::int64_t columns) {
  constexpr double kBlock = 256, kEach = 6;  // kEach: a number is read and half of one written
  if (!rounds(problem)) return 0;
  const ConvShape& shape = problem.shape;
  const auto weights = static_cast<double>(shape.out_channels * shape.in_channels) * static_cast<double>(shape.window.taps());
  return kEach * weights * static_cast<double>(products) * std::ceil(static_cast<double>(columns) / kBlock);
}
double rounded_bytes(const ConvProblem& problem) {
  return rounded_bytes(problem, problem.shape.batch * problem.shape.groups, problem.shape.window.out_count());
}

// One matrix product a group, and `passes` over its columns before.
Work product_work(const ConvProblem& problem, double passes) {
  constexpr std::int64_t kFewOutChannels = 4;  // the matrix product then reads the columns as they lie, once for each row
  // The rows of the weights are read as the model has them: the tile kernel took that much longer than on packed ones.
  constexpr double kRowsByStride = 1.12;
  const ConvShape& shape = problem.shape;
  Work work;
  const auto blocks = static_cast<double>(problem.blocks_of(shape.window.out_count()) * problem.pack());
  const double padding = blocks / std::max(1.0, static_cast<double>(shape.window.out_count()));
  products_of(work, problem) = kRowsByStride * padding * 2 * shape.multiplications() * elementwise(problem);
  work.streamed =
      kFloatBytes * static_cast<double>(problem.channels_out() * shape.in_channels) * static_cast<double>(shape.window.taps());
  const auto outputs = static_cast<double>(shape.batch * shape.groups) * static_cast<double>(shape.window.out_count());
  const auto columns = static_cast<double>(shape.in_channels * shape.window.taps());
  const auto rows = static_cast<double>(shape.out_channels);
  // Else they are read and written again in the order of the tile kernel.
  passes += shape.out_channels <= kFewOutChannels ? rows : 2;
  work.moved = kFloatBytes * outputs * (passes * columns + rows) + epilogue_bytes(problem);
  return work;
}

// out[channel of the group, plane] += w * x, row by row, for one input channel and one plane of outputs.
void add_channel(const ConvShape& shape, const Table& table, const std::byte* x, const std::byte* w, std::byte* out,
                 StopPoll& poll) noexcept {
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
        if (!poll.proceed((z_last - z_first) * (y_last - y_first) * (x_last - x_first))) return;
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

// Direct: the definition. Every weight times the part of its input plane that it meets.
bool direct_applies(const ConvProblem& problem) { return problem.table->axpy[problem.shape.type()] != nullptr; }
Work direct_work(const ConvProblem& problem, std::int64_t) {
  Work work = row_work(problem);
  work.moved += kFloatBytes * problem.shape.multiplications();  // the result's plane is read and written again for each weight
  return work;
}
void direct_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const std::int64_t item = item_of(shape), in = shape.window.in_count(), plane = shape.window.out_count(),
                     taps = shape.window.taps(), channels = shape.groups * shape.out_channels;
  const StopPoll start;
  team.each(
      shape.batch * channels,
      [&](std::int64_t at, int) {
        StopPoll poll = start;
        const std::int64_t n = at / channels, m = at % channels;
        std::byte* to = places.out + at * plane * item;
        std::memset(to, 0, static_cast<std::size_t>(plane * item));
        for (std::int64_t c = 0; c < shape.in_channels; ++c) {
          const std::int64_t channel = (n * shape.groups + m / shape.out_channels) * shape.in_channels + c;
          add_channel(shape, table, places.x + channel * in * item, places.w + (m * shape.in_channels + c) * taps * item, to,
                      poll);
        }
      },
      2 * shape.multiplications());
}

// Depthwise: one input channel each; a row of outputs gathers all its taps while it is in cache.
bool depthwise_applies(const ConvProblem& problem) { return problem.shape.in_channels == 1 && direct_applies(problem); }
Work plain_depthwise_work(const ConvProblem& problem, std::int64_t) {
  const Window& win = problem.shape.window;
  Work work = row_work(problem);
  work.moved += kFloatBytes * static_cast<double>(problem.shape.batch) *
                (static_cast<double>(problem.channels_in()) * static_cast<double>(win.in_count()) +
                 static_cast<double>(problem.channels_out()) * static_cast<double>(win.out_count()));
  return work;
}
void depthwise_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const Window& win = shape.window;
  const std::int64_t item = item_of(shape), channels = shape.groups * shape.out_channels;
  const AxpyFn axpy = table.axpy[shape.type()];
  const StopPoll start;
  team.each(
      shape.batch * channels,
      [&](std::int64_t at, int) {
        StopPoll poll = start;
        const std::int64_t n = at / channels, m = at % channels;
        const std::byte* from = places.x + (n * shape.groups + m / shape.out_channels) * win.in_count() * item;
        const std::byte* weights = places.w + m * win.taps() * item;
        std::byte* out = places.out + at * win.out_count() * item;
        for (std::int64_t z = 0; z < win.out[0]; ++z)
          for (std::int64_t y = 0; y < win.out[1] && poll.proceed(win.out[2] * win.taps()); ++y, out += win.out[2] * item) {
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

// One matrix product a group: rows [first, last) of weights [out_channels, k] times a matrix [k, outputs] of x unchanged, or of
// columns.
void multiply(const ConvShape& shape, const Table& table, const std::byte* w, const std::byte* columns, std::byte* out,
              std::byte* scratch, std::int64_t k, std::int64_t first, std::int64_t last, StopPoll poll) noexcept {
  const std::int64_t item = item_of(shape);
  GemmArgs args;
  args.rows = shape.out_channels;
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
bool pointwise_applies(const ConvProblem& problem) {
  const Window& win = problem.shape.window;
  return win.taps() == 1 && win.in == win.out && win.begin == Window::Axes{0, 0, 0} && win.stride == Window::Axes{1, 1, 1} &&
         problem.table->gemm[problem.shape.type()].run != nullptr;
}
std::size_t pointwise_scratch(const ConvShape& shape, const Table& table) {
  return table.gemm[shape.type()].scratch_bytes(shape.out_channels, shape.window.out_count(), shape.in_channels);
}
Work pointwise_work(const ConvProblem& problem, std::int64_t) {
  Work work = product_work(problem, 0);
  work.moved += rounded_bytes(problem);
  return work;
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
bool columns_apply(const ConvProblem& problem) {
  const ConvShape& shape = problem.shape;
  std::int64_t bytes = item_of(shape);
  for (const std::int64_t dim : {shape.in_channels, shape.window.taps(), shape.window.out_count()})
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return false;
  return problem.table->gemm[shape.type()].run != nullptr && static_cast<std::size_t>(bytes) <= storage_limit();
}
std::size_t columns_bytes(const ConvShape& shape) {
  const std::int64_t bytes = shape.in_channels * shape.window.taps() * shape.window.out_count() * item_of(shape);
  return static_cast<std::size_t>((bytes / 64 + 1) * 64);
}
std::size_t columns_scratch(const ConvShape& shape, const Table& table) {
  return columns_bytes(shape) + table.gemm[shape.type()].scratch_bytes(shape.out_channels, shape.window.out_count(),
                                                                       shape.in_channels * shape.window.taps());
}
Work columns_work(const ConvProblem& problem, std::int64_t) {
  // A row of the image at a time: rows of 14 to 56 numbers took 2.5 to 3.5 times what the rate of moving says.
  constexpr double kByRows = 3;
  // Beginning a region took 150 ns: convolutions of many groups have one for each tap of each plane.
  constexpr double kRegionBytes = 12 * kRowBytes;
  Work work = product_work(problem, 2 * kByRows);  // columns are read from x and written
  work.moved += kRegionBytes * static_cast<double>(problem.shape.batch * problem.shape.groups * problem.shape.window.taps()) +
                rounded_bytes(problem);
  return work;
}
// The columns of one group of one image, `step` elements from row to row, by one tap. Their border is 0 already, and stays so:
// all write the same places.
void put_tap(const ConvShape& shape, const std::byte* x, std::byte* columns, std::int64_t step, std::int64_t tap,
             StopPoll poll) noexcept {
  const Window& win = shape.window;
  const std::int64_t kx = tap % win.kernel[2], ky = tap / win.kernel[2] % win.kernel[1], kz = tap / win.kernel[2] / win.kernel[1];
  const auto [z0, z1] = win.valid(0, kz);
  const auto [y0, y1] = win.valid(1, ky);
  const auto [x0, x1] = win.valid(2, kx);
  if (z0 == z1 || y0 == y1 || x0 == x1 || shape.in_channels == 0) return;
  // Made by hand: canonical already but for axes of size 1, and inside both tensors by what valid() says.
  Region region;
  region.axes = 4;
  region.size = {shape.in_channels, z1 - z0, y1 - y0, x1 - x0};
  region.src.stride = {win.in_count(), win.stride[0] * win.in[1] * win.in[2], win.stride[1] * win.in[2], win.stride[2]};
  region.src.offset = (win.source(0, z0, kz) * win.in[1] + win.source(1, y0, ky)) * win.in[2] + win.source(2, x0, kx);
  region.dst.stride = {win.taps() * step, win.out[1] * win.out[2], win.out[2], 1};
  region.dst.offset = tap * step + (z0 * win.out[1] + y0) * win.out[2] + x0;
  run_in_blocks(shape.in_channels, std::max<std::int64_t>(region.count() / shape.in_channels, 1), poll,
                [&](std::int64_t first, std::int64_t last) {
                  Region part = region;
                  part.size[0] = last - first;
                  part.src.offset += first * region.src.stride[0];
                  part.dst.offset += first * region.dst.stride[0];
                  raster(part, x, columns, static_cast<std::size_t>(item_of(shape)));
                });
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
  StopPoll clearing;
  if (win.padded())
    for (int member = 0; member < (pieces > 1 ? 1 : team.size()); ++member)
      run_in_blocks(k, plane, clearing, [&](std::int64_t first, std::int64_t last) {
        std::memset(columns_of(member) + first * plane * item, 0, static_cast<std::size_t>((last - first) * plane * item));
      });
  const double operations = 2 * shape.multiplications();
  if (pieces == 1) {
    team.each(
        products,
        [&](std::int64_t product, int member) {
          for (std::int64_t tap = 0; tap < taps; ++tap) put_tap(shape, from(product), columns_of(member), plane, tap, poll);
          multiply_piece(product, 0, columns_of(member), rest_of(member));
        },
        operations);
    return;
  }
  for (std::int64_t product = 0; product < products; ++product) {
    const double share = operations / static_cast<double>(products);
    team.each(taps, [&](std::int64_t tap, int) { put_tap(shape, from(product), columns_of(0), plane, tap, poll); }, share);
    team.each(
        pieces, [&](std::int64_t piece, int member) { multiply_piece(product, piece, columns_of(0), rest_of(member)); }, share);
  }
}

// Small planes: the columns of several images side by side, so that one product has long rows.
constexpr std::int64_t kLongRow = 256;
std::int64_t images_together(const ConvShape& shape) {
  const std::int64_t plane = std::max<std::int64_t>(shape.window.out_count(), 1);
  return std::clamp<std::int64_t>((kLongRow + plane - 1) / plane, 1, std::max<std::int64_t>(shape.batch, 1));
}
bool together_applies(const ConvProblem& problem) {
  return problem.shape.groups == 1 && images_together(problem.shape) > 1 && columns_apply(problem);
}
std::int64_t together_step(const ConvShape& shape) { return images_together(shape) * shape.window.out_count(); }
std::size_t together_columns_bytes(const ConvShape& shape) {
  return static_cast<std::size_t>((shape.in_channels * shape.window.taps() * together_step(shape) * item_of(shape) / 64 + 1) *
                                  64);
}
std::size_t together_result_bytes(const ConvShape& shape) {
  return static_cast<std::size_t>((shape.out_channels * together_step(shape) * item_of(shape) / 64 + 1) * 64);
}
std::size_t together_scratch(const ConvShape& shape, const Table& table) {
  return together_columns_bytes(shape) + together_result_bytes(shape) +
         table.gemm[shape.type()].scratch_bytes(shape.out_channels, together_step(shape),
                                                shape.in_channels * shape.window.taps());
}
Work together_work(const ConvProblem& problem, std::int64_t) {
  constexpr double kByRows = 3, kRegionBytes = 12 * kRowBytes;
  const ConvShape& shape = problem.shape;
  const auto plane = static_cast<double>(shape.window.out_count()), step = static_cast<double>(together_step(shape));
  Work work = product_work(problem, 2 * kByRows);
  // Rows are padded to whole blocks once for all images together, and the weights are read once for them.
  const auto blocks = [&](double row) {
    const auto block = static_cast<double>(problem.pack());
    return std::ceil(row / block) * block / row;
  };
  products_of(work, problem) *= blocks(step) / blocks(plane);
  work.moved += 2 * kFloatBytes * static_cast<double>(shape.batch * shape.out_channels) * (plane + kRowBytes / 8) +
                kRegionBytes * static_cast<double>(shape.batch * shape.window.taps()) +
                rounded_bytes(problem, (shape.batch + images_together(shape) - 1) / images_together(shape), together_step(shape));
  return work;
}
void together_run(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept {
  const std::int64_t item = item_of(shape), plane = shape.window.out_count(), taps = shape.window.taps(),
                     depth = shape.in_channels * taps, images = images_together(shape), step = images * plane;
  const StopPoll start;
  team.each((shape.batch + images - 1) / images,
            [&](std::int64_t at, int member) {
              StopPoll poll = start;
              std::byte* columns = places.scratch + member * places.scratch_bytes;
              std::byte* result = columns + together_columns_bytes(shape);
              const std::int64_t first = at * images, count = std::min(images, shape.batch - first);
              if (shape.window.padded()) std::memset(columns, 0, together_columns_bytes(shape));
              for (std::int64_t i = 0; i < count; ++i)
                for (std::int64_t tap = 0; tap < taps; ++tap)
                  put_tap(shape, places.x + (first + i) * shape.in_channels * shape.window.in_count() * item,
                          columns + i * plane * item, step, tap, poll);
              GemmArgs args;
              args.m = shape.out_channels;
              args.n = count * plane;
              args.k = args.a_row = depth;
              args.a = places.w;
              args.a_col = args.b_col = 1;
              args.b = columns;
              args.b_row = args.out_row = step;
              args.out = result;
              args.scratch = result + together_result_bytes(shape);
              run_product(table.gemm[shape.type()], args, item, poll);
              for (std::int64_t i = 0; i < count; ++i)
                for (std::int64_t m = 0; m < shape.out_channels; ++m)
                  std::memcpy(places.out + ((first + i) * shape.out_channels + m) * plane * item,
                              result + (m * step + i * plane) * item, static_cast<std::size_t>(plane * item));
            },
            2 * shape.multiplications());
}

// One of these algorithms.
struct Plain {
  std::string_view name;
  bool (*applies)(const ConvProblem& problem);
  Work (*work)(const ConvProblem& problem, std::int64_t parameter);
  std::size_t (*scratch_bytes)(const ConvShape& shape, const Table& table);  // for each member of a team; null: none
  void (*run)(Team& team, const ConvShape& shape, const Table& table, const ConvPlaces& places) noexcept;
};
constexpr Plain kPointwise{"1x1 GEMM", &pointwise_applies, &pointwise_work, &pointwise_scratch, &pointwise_run};
constexpr Plain kDepthwise{"plain depthwise", &depthwise_applies, &plain_depthwise_work, nullptr, &depthwise_run};
constexpr Plain kColumns{"im2col GEMM", &columns_apply, &columns_work, &columns_scratch, &columns_run};
constexpr Plain kSideBySide{"images together", &together_applies, &together_work, &together_scratch, &together_run};
constexpr Plain kDirect{"plain direct", &direct_applies, &direct_work, nullptr, &direct_run};

// Sums by a plain algorithm, then the epilogue plane by plane.
class PlainConvStep final : public SharedStep {
 public:
  PlainConvStep(const ConvProblem& problem, const Plain& plain, const EpilogueKernel& epilogue)
      : shape_(problem.shape), table_(*problem.table), plain_(plain), epilogue_(epilogue) {
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    if (plain.scratch_bytes != nullptr) scratch_bytes_ = (plain.scratch_bytes(shape_, table_) + kLine - 1) / kLine * kLine;
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    constexpr double kOperations = 8;  // cost of an epilogue for each element, about: tells what is worth sharing
    plain_.run(team, shape_, table_, {inputs[0], inputs[1], output, scratch, static_cast<std::int64_t>(scratch_bytes_)});
    if (epilogue_.empty()) return;
    const std::int64_t channels = shape_.groups * shape_.out_channels, planes = shape_.batch * channels,
                       plane = shape_.window.out_count();
    team.each(
        planes,
        [&](std::int64_t p, int) {
          epilogue_.run_channel(output + p * plane * item_of(shape_), plane, inputs, p % channels, p * plane);
        },
        kOperations * static_cast<double>(planes * plane));
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return plain_.name; }

 private:
  ConvShape shape_;
  const Table& table_;
  const Plain& plain_;
  EpilogueKernel epilogue_;
};

template <const Plain& kPlain>
constexpr ConvAlgorithm plain_algorithm() {
  return {kPlain.name, [](const ConvProblem& problem) { return single_parameter(kPlain.applies(problem)); }, kPlain.work, nullptr,
          [](const ConvProblem& problem, std::int64_t, const EpilogueKernel& epilogue) -> std::unique_ptr<HostStep> {
            return std::make_unique<PlainConvStep>(problem, kPlain, epilogue);
          }};
}

}  // namespace

double ConvShape::multiplications() const noexcept {
  return static_cast<double>(batch * groups) * static_cast<double>(out_channels * in_channels) *
         static_cast<double>(window.taps()) * static_cast<double>(window.out_count());
}

extern const ConvAlgorithm kPlainPointwise;
const ConvAlgorithm kPlainPointwise = plain_algorithm<kPointwise>();
extern const ConvAlgorithm kPlainDepthwise;
const ConvAlgorithm kPlainDepthwise = plain_algorithm<kDepthwise>();
extern const ConvAlgorithm kPlainColumns;
const ConvAlgorithm kPlainColumns = plain_algorithm<kColumns>();
extern const ConvAlgorithm kImagesTogether;
const ConvAlgorithm kImagesTogether = plain_algorithm<kSideBySide>();
extern const ConvAlgorithm kPlainDirect;
const ConvAlgorithm kPlainDirect = plain_algorithm<kDirect>();

}  // namespace walle

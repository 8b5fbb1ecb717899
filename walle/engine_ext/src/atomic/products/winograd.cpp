// Winograd's convolution in packed layouts: F(unit, taps) of kernels/winograd.h in one or two dimensions (§4.1). Tiles of the
// input are transformed to V, each of their positions is a matrix product with the transformed weights U to M, and M's tiles are
// transformed to the result.
//
// Orders: V is [position][block of input channels][tile][c], M the same of output channels, so that the tile kernel's rows are
// `pack` apart; U is [position][group][pair of blocks of output channels][input channel][2 * c], the last block alone where
// their count is odd.
#include <algorithm>
#include <utility>
#include <vector>

#include "atomic/products/convolution.h"

namespace walle {

namespace {

// The second-level cache of most current x86-64 cores; two thirds of it are for V and M, the rest for weights that stream
// through.
constexpr std::int64_t kCacheBytes = 1 << 20;
constexpr std::int64_t kBatchBytes = kCacheBytes * 2 / 3;
// With fewer tiles at once (two of the tile kernel's, of 14 rows), reading the weights again would take longer than computing,
// even where V and M are in the shared cache.
constexpr std::int64_t kLeastTiles = 28;
// Larger weights are read from memory each time: then all tiles are computed at once.
constexpr std::int64_t kSharedCacheBytes = 24 << 20;

// One axis of the image and its tiles.
struct Axis {
  std::int64_t unit = 1, size = 1;  // outputs and inputs of a tile
  std::int64_t in = 1, out = 1, begin = 0;
  std::int64_t in_step = 0, out_step = 0;  // distance from one place to the next
  std::int64_t tiles = 1;

  Axis() = default;
  Axis(const Window& window, std::size_t axis, WinogradForm form, std::int64_t in_stride, std::int64_t out_stride)
      : unit(form.unit),
        size(form.size()),
        in(window.in[axis]),
        out(window.out[axis]),
        begin(window.begin[axis]),
        in_step(in_stride),
        out_step(out_stride),
        tiles((out + unit - 1) / unit) {}

  std::int64_t source(std::int64_t tile) const noexcept { return tile * unit - begin; }
  // The places of a tile that lie within the image: [first, last), empty where none does.
  std::int64_t first(std::int64_t tile) const noexcept { return std::clamp<std::int64_t>(-source(tile), 0, size); }
  std::int64_t last(std::int64_t tile) const noexcept { return std::clamp<std::int64_t>(in - source(tile), first(tile), size); }
  std::int64_t written(std::int64_t tile) const noexcept { return std::min(unit, out - tile * unit); }
  // The tiles that lie wholly within the input or the output: [first, last).
  std::pair<std::int64_t, std::int64_t> whole_in() const noexcept {
    const std::int64_t from = std::clamp<std::int64_t>((begin + unit - 1) / unit, 0, tiles);
    const std::int64_t to = in + begin < size ? 0 : (in + begin - size) / unit + 1;
    return {from, std::clamp(to, from, tiles)};
  }
  std::pair<std::int64_t, std::int64_t> whole_out() const noexcept { return {0, out / unit}; }
};

// The axes along which such a kernel is transformed.
enum class Across { none, columns, rows, both };
Across across(const ConvShape& shape) {
  const Window& w = shape.window;
  const Window::Axes once{1, 1, 1};
  if (w.stride != once || w.dilation != once || w.kernel[0] != 1 || w.in[0] != 1 || w.out[0] != 1) return Across::none;
  if (w.kernel[1] == w.kernel[2]) return Across::both;
  return w.kernel[1] == 1 ? Across::columns : w.kernel[2] == 1 ? Across::rows : Across::none;
}

// Sizes and layouts that follow from shape and unit.
struct Tiling {
  int form = 0;
  bool square = false;
  Axis rows, columns;  // a tile row runs along `columns`
  std::int64_t batch, groups, c;
  std::int64_t in_channels, out_channels, in_blocks, out_blocks;  // counts of a group
  std::int64_t positions, tiles;
  std::int64_t at_once = 1;  // tiles

  Tiling(const ConvProblem& conv, std::int64_t unit)
      : batch(conv.shape.batch),
        groups(conv.shape.groups),
        c(conv.pack()),
        in_channels(conv.shape.in_channels),
        out_channels(conv.shape.out_channels),
        in_blocks(conv.blocks_of(in_channels)),
        out_blocks(conv.blocks_of(out_channels)) {
    const Window& window = conv.shape.window;
    const Across which = across(conv.shape);
    const std::size_t along = which == Across::rows ? 1 : 2, other = 3 - along;
    while (kWinogradForms[form].unit != unit || kWinogradForms[form].taps != window.kernel[along]) ++form;
    square = which == Across::both;
    const auto in_step = [&](std::size_t axis) { return axis == 2 ? c : c * window.in[2]; };
    const auto out_step = [&](std::size_t axis) { return axis == 2 ? c : c * window.out[2]; };
    columns = Axis(window, along, kWinogradForms[form], in_step(along), out_step(along));
    rows = Axis(window, other, square ? kWinogradForms[form] : WinogradForm{1, 1}, in_step(other), out_step(other));
    positions = rows.size * columns.size;
    tiles = batch * rows.tiles * columns.tiles;
    const std::int64_t fitting = std::max<std::int64_t>(kLeastTiles, kBatchBytes / tile_bytes());
    const std::int64_t batches =
        weights_bytes() > kSharedCacheBytes ? 1 : std::max<std::int64_t>(1, (tiles + fitting - 1) / fitting);
    at_once = (tiles + batches - 1) / batches;
  }

  std::int64_t batches() const noexcept { return at_once == 0 ? 0 : (tiles + at_once - 1) / at_once; }
  std::int64_t tile_bytes() const noexcept {
    return positions * groups * (in_blocks + out_blocks) * c * static_cast<std::int64_t>(sizeof(float));
  }
  // Of one position of V, of M and of U. Odd multiples of c: a power of two would put every position into the same set of a
  // cache.
  std::int64_t v_position() const noexcept { return ((groups * in_blocks * at_once) | 1) * c; }
  std::int64_t m_position() const noexcept { return ((groups * out_blocks * at_once) | 1) * c; }
  std::int64_t u_group() const noexcept { return out_blocks * in_channels * c; }
  std::int64_t weights_bytes() const noexcept {
    return positions * groups * u_group() * static_cast<std::int64_t>(sizeof(float));
  }
  std::size_t v_bytes() const noexcept { return static_cast<std::size_t>(positions * v_position()) * sizeof(float); }
  std::size_t m_bytes() const noexcept { return static_cast<std::size_t>(positions * m_position()) * sizeof(float); }
};

// A stretch of tiles in one tile row of one image.
struct Run {
  std::int64_t image, row, column, count;
};
// Calls `f` for the runs of [first, last) of all tiles, split where `whole` begins and ends, so that the columns of a run are
// either all whole or a single cut one.
template <class F>
void for_runs(const Tiling& tiling, std::int64_t first, std::int64_t last, std::pair<std::int64_t, std::int64_t> whole, F f) {
  while (first < last) {
    const std::int64_t column = first % tiling.columns.tiles, line = first / tiling.columns.tiles;
    const bool inside = column >= whole.first && column < whole.second;
    const std::int64_t count = inside ? std::min(whole.second - column, last - first) : 1;
    f(Run{line / tiling.rows.tiles, line % tiling.rows.tiles, column, count}, first);
    first += count;
  }
}

class WinogradStep final : public SharedStep {
 public:
  WinogradStep(const ConvProblem& conv, std::int64_t unit, const EpilogueKernel& epilogue)
      : tiling_(conv, unit), table_(*conv.table), epilogue_(epilogue) {
    scratch_bytes_ = tiling_.v_bytes() + tiling_.m_bytes();
    for (std::int64_t block = 0; block < tiling_.in_blocks; ++block)
      segments_.push_back({block * tiling_.at_once * tiling_.c, std::min(tiling_.c, tiling_.in_channels - block * tiling_.c)});
  }

  // Batch by batch; in each, a block of channels is a unit of work of the transforms, a position one of the products.
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    float* v = reinterpret_cast<float*>(scratch);
    float* m = reinterpret_cast<float*>(scratch + tiling_.v_bytes());
    for (std::int64_t first = 0; first < tiling_.tiles; first += tiling_.at_once) {
      const std::int64_t last = std::min(first + tiling_.at_once, tiling_.tiles);
      const double operations = 2.0 * static_cast<double>(tiling_.positions * (last - first) * tiling_.groups) *
                                static_cast<double>(tiling_.in_channels * tiling_.out_channels);
      team.each(
          tiling_.groups * tiling_.in_blocks,
          [&](std::int64_t block, int) { to_positions(reinterpret_cast<const float*>(inputs[0]), first, last, block, v); },
          operations);
      team.each(
          tiling_.positions,
          [&](std::int64_t position, int) { multiply(v, reinterpret_cast<const float*>(inputs[1]), position, last - first, m); },
          operations);
      team.each(
          tiling_.groups * tiling_.out_blocks,
          [&](std::int64_t block, int) { from_positions(m, first, last, block, inputs, reinterpret_cast<float*>(output)); },
          operations);
    }
  }
  std::string_view algorithm() const noexcept override { return kPackedWinograd.name; }

 private:
  const Winograd& transforms() const noexcept { return table_.winograd[tiling_.form][tiling_.square]; }

  void to_positions(const float* x, std::int64_t first, std::int64_t last, std::int64_t block, float* v) const noexcept {
    const Axis &rows = tiling_.rows, &columns = tiling_.columns;
    const std::int64_t blocks = tiling_.groups * tiling_.in_blocks, plane = rows.in * columns.in * tiling_.c;
    WinogradArgs args;
    args.tile = columns.unit * columns.in_step;
    args.row = rows.in_step;
    args.column = columns.in_step;
    args.position = tiling_.v_position();
    for_runs(tiling_, first, last, columns.whole_in(), [&](const Run& run, std::int64_t tile) {
      args.count = run.count;
      args.in = x + (run.image * blocks + block) * plane + rows.source(run.row) * rows.in_step +
                columns.source(run.column) * columns.in_step;
      args.out = v + (block * tiling_.at_once + tile - first) * tiling_.c;
      args.row_first = rows.first(run.row);
      args.row_last = rows.last(run.row);
      args.column_first = columns.first(run.column);
      args.column_last = columns.last(run.column);
      transforms().input(args);
    });
  }

  void multiply(const float* v, const float* u, std::int64_t position, std::int64_t count, float* m) const noexcept {
    const std::int64_t block_step = tiling_.at_once * tiling_.c;
    PanelArgs args;
    args.rows = count;
    args.a_step = args.out_step = args.width = tiling_.c;
    args.out_block = block_step;
    args.segments = segments_.data();
    args.segment_count = tiling_.in_blocks;
    for (std::int64_t group = 0; group < tiling_.groups; ++group) {
      args.a = v + position * tiling_.v_position() + group * tiling_.in_blocks * block_step;
      const float* weights = u + (position * tiling_.groups + group) * tiling_.u_group();
      float* out = m + position * tiling_.m_position() + group * tiling_.out_blocks * block_step;
      for (std::int64_t block = 0; block < tiling_.out_blocks; block += 2) {
        args.blocks = std::min<std::int64_t>(2, tiling_.out_blocks - block);
        args.w = weights + block * tiling_.in_channels * tiling_.c;
        args.out = out + block * block_step;
        table_.panel(args);
      }
    }
  }

  void from_positions(const float* m, std::int64_t first, std::int64_t last, std::int64_t block, std::byte* const* inputs,
                      float* out) const noexcept {
    const Axis &rows = tiling_.rows, &columns = tiling_.columns;
    const std::int64_t c = tiling_.c, blocks = tiling_.groups * tiling_.out_blocks, plane = rows.out * columns.out * c;
    WinogradArgs args;
    args.tile = columns.unit * columns.out_step;
    args.row = rows.out_step;
    args.column = columns.out_step;
    args.position = tiling_.m_position();
    const EpilogueOperands operands = epilogue_.operands(inputs).at(block * c, 0);
    for_runs(tiling_, first, last, columns.whole_out(), [&](const Run& run, std::int64_t tile) {
      const std::int64_t to = (run.image * blocks + block) * plane + run.row * rows.unit * rows.out_step +
                              run.column * columns.unit * columns.out_step;
      args.count = run.count;
      args.in = m + (block * tiling_.at_once + tile - first) * c;
      args.out = out + to;
      args.row_last = rows.written(run.row);
      args.column_last = columns.written(run.column);
      const EpilogueOperands here = operands.at(0, to);
      args.finish = epilogue_.finish(here);
      transforms().output(args);
      if (!epilogue_.has_rest()) return;
      const std::int64_t pixels = (run.count - 1) * columns.unit + args.column_last;
      for (std::int64_t row = 0; row < args.row_last; ++row) {
        const std::int64_t line = row * rows.out_step;
        const auto part = [&](std::int64_t place, std::int64_t count) {
          epilogue_.run_rest(out + to + place, count, c, c, here.at(0, place));
        };
        if (columns.out_step == c) {
          part(line, pixels);
        } else {
          for (std::int64_t pixel = 0; pixel < pixels; ++pixel) part(line + pixel * columns.out_step, 1);
        }
      }
    });
  }

  Tiling tiling_;
  const Table& table_;
  EpilogueKernel epilogue_;
  std::vector<Segment> segments_;
};

std::vector<std::int64_t> winograd_parameters(const ConvProblem& conv) {
  const ConvShape& shape = conv.shape;
  const Across which = across(shape);
  if (!conv.packable || conv.plain_input || which == Across::none) return {};
  if (std::min({shape.batch, shape.in_channels, shape.out_channels, shape.window.out_count()}) < 1) return {};
  if (shape.groups > 1 && (shape.in_channels % conv.pack() != 0 || shape.out_channels % conv.pack() != 0)) return {};
  std::vector<std::int64_t> units;
  std::int64_t tiles = 0;
  for (const WinogradForm& form : kWinogradForms) {
    if (form.taps != shape.window.kernel[which == Across::rows ? 1 : 2]) continue;
    // A larger unit that needs the same number of tiles costs more.
    const std::int64_t needed = Tiling(conv, form.unit).tiles;
    if (!units.empty() && needed == tiles) continue;
    units.push_back(form.unit);
    tiles = needed;
  }
  return units;
}

// Elementwise operations of one input or output transform along an axis, each counted as the two of a fused multiplication.
double input_operations(const Axis& axis) {
  const std::int64_t pairs = (axis.size - 1) / 2, zeros = (axis.size + 1) % 2;
  return axis.size == 1 ? 0 : static_cast<double>(2 * ((1 + zeros) * pairs + 2 * pairs * pairs));
}
double output_operations(const Axis& axis) {
  const std::int64_t pairs = (axis.size - 1) / 2, zeros = (axis.size + 1) % 2;
  return axis.size == 1 ? 0 : static_cast<double>(2 * (2 * pairs + axis.unit * (pairs - 1) + 1 + zeros));
}

Work winograd_work(const ConvProblem& conv, std::int64_t unit) {
  const Tiling tiling(conv, unit);
  const Axis &rows = tiling.rows, &columns = tiling.columns;
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  const double tiles = real(tiling.tiles), in = real(tiling.groups * tiling.in_blocks * tiling.c),
               out = real(tiling.groups * tiling.out_blocks * tiling.c);
  Work work;
  work.panel = 2 * real(tiling.positions * tiling.in_channels) * tiles * out;
  work.lanes = tiles * (in * (real(columns.size) * input_operations(rows) + real(rows.size) * input_operations(columns)) +
                        out * (real(columns.size) * output_operations(rows) + real(rows.unit) * output_operations(columns)));
  // Weights that do not fit into the cache beside a batch are read again for each.
  const std::int64_t weights = tiling.weights_bytes();
  work.streamed = real(weights > kCacheBytes - kBatchBytes ? weights * tiling.batches() : weights);
  // V and M are written and read, the image and the result once.
  const ConvShape& shape = conv.shape;
  work.moved = 2 * tiles * real(tiling.tile_bytes());
  work.move(real(shape.batch) * sizeof(float) * (in * real(shape.window.in_count()) + out * real(shape.window.out_count())));
  return work;
}

// Doubles that are computed together, one for each of as many output channels; every instruction set's pack is a multiple.
constexpr int kTogether = 4;
struct Doubles {
  double lane[kTogether];
};
inline Doubles operator+(const Doubles& a, const Doubles& b) noexcept {
  Doubles sum;
  for (int i = 0; i < kTogether; ++i) sum.lane[i] = a.lane[i] + b.lane[i];
  return sum;
}
inline Doubles operator*(double a, const Doubles& b) noexcept {
  Doubles product;
  for (int i = 0; i < kTogether; ++i) product.lane[i] = a * b.lane[i];
  return product;
}

// Weights along one axis: `taps` numbers to `size`, in float64. A point and its negative share their sums, as in the transforms.
template <int kForm>
inline void transform_weights(const Doubles* in, int in_step, Doubles* out, int out_step) noexcept {
  constexpr WinogradForm form = kWinogradForms[kForm];
  constexpr WinogradMatrices by = winograd_matrices(form);
  if (form.zeros() == 1) out[0] = by.weights[0][0] * in[0];
  for (int row = form.zeros(); row < form.size() - 1; row += 2) {
    Doubles even = by.weights[row][0] * in[0], odd = by.weights[row][1] * in[in_step];
    for (int tap = 2; tap < form.taps; tap += 2) even = even + by.weights[row][tap] * in[tap * in_step];
    for (int tap = 3; tap < form.taps; tap += 2) odd = odd + by.weights[row][tap] * in[tap * in_step];
    out[row * out_step] = even + odd;
    // The divisors of a point and its negative differ in sign where 0 is not a point.
    out[(row + 1) * out_step] = form.zeros() == 1 ? even + -1.0 * odd : odd + -1.0 * even;
  }
  out[(form.size() - 1) * out_step] = in[(form.taps - 1) * in_step];
}

// U of kTogether output channels and `count` input channels. `from` are the weights of the first of these, null for output
// channels of the padding.
template <int kForm, bool kSquare>
void pack_channels(const float* const* from, std::int64_t count, float* u, std::int64_t u_position, std::int64_t u_channel) {
  constexpr int taps = kWinogradForms[kForm].taps, size = kWinogradForms[kForm].size();
  constexpr int in_rows = kSquare ? taps : 1, rows = kSquare ? size : 1;
  for (std::int64_t channel = 0; channel < count; ++channel, u += u_channel) {
    Doubles g[in_rows * taps], half[rows * taps], whole[rows * size];
    for (int lane = 0; lane < kTogether; ++lane)
      for (int i = 0; i < in_rows * taps; ++i)
        g[i].lane[lane] = from[lane] == nullptr ? 0.0 : static_cast<double>(from[lane][channel * in_rows * taps + i]);
    if constexpr (kSquare)
      for (int tap = 0; tap < taps; ++tap) transform_weights<kForm>(g + tap, taps, half + tap, taps);
    for (int row = 0; row < rows; ++row) transform_weights<kForm>((kSquare ? half : g) + row * taps, 1, whole + row * size, 1);
    for (int position = 0; position < rows * size; ++position)
      for (int lane = 0; lane < kTogether; ++lane)
        u[position * u_position + lane] = static_cast<float>(whole[position].lane[lane]);
  }
}

using PackFn = void (*)(const float* const* from, std::int64_t count, float* u, std::int64_t u_position, std::int64_t u_channel);
template <int... kForms>
PackFn pack_of(const Tiling& tiling, std::integer_sequence<int, kForms...>) {
  static constexpr PackFn of[][2] = {{&pack_channels<kForms, false>, &pack_channels<kForms, true>}...};
  return of[tiling.form][tiling.square];
}

Tensor winograd_pack(const ConvProblem& conv, std::int64_t unit, const float* w) {
  // As many input channels at a time as leave U's lines, of which kTogether lanes are filled at once, in a core's cache.
  constexpr std::int64_t kChannels = 8;
  const Tiling tiling(conv, unit);
  const std::int64_t c = tiling.c, taps = conv.shape.window.taps(), row = tiling.in_channels * taps;
  const std::int64_t u_position = tiling.groups * tiling.u_group();
  const PackFn pack_lanes = pack_of(tiling, std::make_integer_sequence<int, kWinogradFormCount>());
  Tensor packed = Tensor::empty(DType::f32, {tiling.positions, u_position});
  float* u = packed.data<float>();
  for (std::int64_t group = 0; group < tiling.groups; ++group, w += tiling.out_channels * row)
    for (std::int64_t first = 0; first < tiling.out_blocks * c; first += 2 * c) {
      const std::int64_t width = std::min(2 * c, tiling.out_blocks * c - first);
      for (std::int64_t channel = 0; channel < tiling.in_channels; channel += kChannels)
        for (std::int64_t lane = 0; lane < width; lane += kTogether) {
          const float* from[kTogether];
          for (std::int64_t i = 0; i < kTogether; ++i)
            from[i] = first + lane + i < tiling.out_channels ? w + (first + lane + i) * row + channel * taps : nullptr;
          pack_lanes(from, std::min(kChannels, tiling.in_channels - channel),
                     u + group * tiling.u_group() + first * tiling.in_channels + channel * width + lane, u_position, width);
        }
    }
  return packed;
}

std::unique_ptr<HostStep> winograd_make(const ConvProblem& conv, std::int64_t unit, const EpilogueKernel& epilogue) {
  return std::make_unique<WinogradStep>(conv, unit, epilogue);
}

}  // namespace

const ConvAlgorithm kPackedWinograd{"winograd", &winograd_parameters, &winograd_work, &winograd_pack, &winograd_make};

}  // namespace walle

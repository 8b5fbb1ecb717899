// Direct convolution in packed layouts by the tile kernel: a row of A is an output pixel, a segment of it the channels of one
// block under one tap, so that nothing is gathered (no im2col). A 1x1 kernel is a matrix product with packed pixels as rows.
//
// An element is a float, or a pair of bfloat16 of neighbouring channels (`grain` 2): the input is then rounded while it is copied
// to add its borders.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "atomic/products/convolution.h"
#include "core/bfloat16.h"
#include "kernels/bfloat16.h"

namespace walle {

namespace {

// Half of the smallest second-level cache of current cores; data that one pass reads repeatedly must fit.
constexpr std::int64_t kNearBytes = 256 << 10;

// The sums of one output: segments in the order of the weights, cut into chunks whose panels of weights stay near.
struct Chunk {
  std::size_t first = 0, count = 0;  // segments
  std::int64_t before = 0;           // elements of the chunks before
  std::int64_t depth = 0;            // elements of the segments
};

// Channels of the input: [first, last).
struct ChannelRange {
  std::int64_t first, last;
  bool operator==(const ChannelRange&) const = default;
};

// Orders of rows of A, the parameters of the algorithm. Rows are pixels of one line of one image, or of all lines of a 1x1
// kernel that leaves no pixel out.
enum Order : std::int64_t {
  kLines = 0,
  kDense = 1,   // a 1x1 kernel that leaves pixels out: the others are copied first, and are one line
  kImages = 2,  // rows are the same pixel of all images
  kShort = 3    // lines of a 1x1 kernel are short, so that a deep sum's part of A is near for all panels of weights
};

// Pixels of a piece of a long line: multiples of the tile heights of instruction sets.
constexpr std::int64_t kPiece = 168, kShortPiece = 42;

// The input with its borders, as the segments address it.
struct Source {
  std::int64_t grain = 1;     // channels in an element
  Window::Axes dims{};        // sizes of the padded image
  Window::Axes stride{};      // steps of the outputs in the padded image
  bool copied = false;        // true where there is a border, elements are pairs, or pixels are left out
  std::int64_t channels = 1;  // channels of a pixel
  std::int64_t unit = 1;      // elements of a pixel
  std::int64_t plane = 0;     // elements of a channel or block of channels
  std::int64_t planes = 0;    // planes of one image

  Source(const ConvProblem& conv, std::int64_t grain_of, std::int64_t order = kLines)
      : grain(grain_of), stride(conv.shape.window.stride), copied(grain_of > 1 || order == kDense) {
    const Window& win = conv.shape.window;
    if (order == kDense) stride = {1, 1, 1};
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
      const std::int64_t reach = (win.out[axis] - 1) * stride[axis] + (win.kernel[axis] - 1) * win.dilation[axis] + 1;
      copied = copied || win.begin[axis] > 0 || reach > win.in[axis];
      dims[axis] = reach;
    }
    if (!copied) dims = win.in;
    channels = !conv.plain_input ? conv.pack() : grain > 1 ? conv.channels_in() : 1;
    unit = (channels + grain - 1) / grain;
    plane = dims[0] * dims[1] * dims[2] * unit;
    planes = (conv.channels_in() + channels - 1) / channels;
  }
};

// Whether the rows of A of all outputs are evenly spaced.
bool is_flat(const ConvShape& shape, const Source& source) noexcept {
  return source.dims == shape.window.out && shape.window.taps() == 1 && source.stride == Window::Axes{1, 1, 1};
}

// The terms of each output. The order of the weights, chunks included, depends on the kernel alone and not on the image, so that
// plans of several shapes share them.
struct Sums {
  std::vector<Segment> segments;
  std::vector<Chunk> chunks;
  std::int64_t depth = 0;  // elements of all segments

  Sums(const ConvProblem& conv, const Source& source, ChannelRange range) {
    const Window& win = conv.shape.window;
    const std::int64_t most = kNearBytes / (2 * conv.pack() * kFloat);
    for (std::int64_t plane = range.first / source.channels; plane * source.channels < range.last; ++plane) {
      const std::int64_t from = std::max(range.first - plane * source.channels, std::int64_t{0});
      const std::int64_t count = std::min(source.channels, range.last - plane * source.channels) - from;
      for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
        for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
          for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
            const std::int64_t pixel =
                (kz * win.dilation[0] * source.dims[1] + ky * win.dilation[1]) * source.dims[2] + kx * win.dilation[2];
            const Segment next{plane * source.plane + pixel * source.unit + from, (count + source.grain - 1) / source.grain};
            if (chunks.empty() || chunks.back().depth + next.length > most) chunks.push_back({segments.size(), 0, depth, 0});
            depth += next.length;
            Chunk& chunk = chunks.back();
            chunk.depth += next.length;
            if (chunk.count > 0 && segments.back().offset + segments.back().length == next.offset) {
              segments.back().length += next.length;  // neighbours in memory
            } else {
              segments.push_back(next);
              ++chunk.count;
            }
          }
    }
  }
  Sums(const ConvProblem& conv, const Source& source) : Sums(conv, source, {0, conv.shape.in_channels}) {}
};

// One or two blocks of the result, which sum the same segments of the input.
struct Panel {
  std::int64_t block, blocks;
  std::size_t sums;       // index
  std::int64_t x;         // floats before the segments
  std::int64_t w;         // floats of weights before its own, of all chunks
  std::int64_t w_blocks;  // blocks that each chunk of weights has, `w_before` of them before its own
  std::int64_t w_before;
};

// The panels of a convolution in whole groups, or in one: all have the same sums, of their group.
std::vector<Panel> whole_panels(const ConvProblem& conv, const Source& source, std::vector<Sums>& sums) {
  sums.emplace_back(conv, source);
  const std::int64_t blocks = conv.blocks_of(conv.shape.out_channels), in_blocks = conv.blocks_of(conv.shape.in_channels);
  std::vector<Panel> panels;
  for (std::int64_t group = 0; group < conv.shape.groups; ++group)
    for (std::int64_t block = 0; block < blocks; block += 2)
      panels.push_back({group * blocks + block, std::min<std::int64_t>(2, blocks - block), 0, group * in_blocks * source.plane,
                        group * sums.front().depth * blocks * conv.pack(), blocks, block});
  return panels;
}

// The channels of the groups that a block of the result belongs to.
ChannelRange group_channels(const ConvProblem& conv, std::int64_t block) {
  const std::int64_t last = std::min(conv.channels_out(), (block + 1) * conv.pack()) - 1, out = conv.shape.out_channels;
  return {block * conv.pack() / out * conv.shape.in_channels, (last / out + 1) * conv.shape.in_channels};
}

// The panels of a convolution in any groups: a block sums the channels of the groups that it belongs to.
std::vector<Panel> group_panels(const ConvProblem& conv, const Source& source, std::vector<Sums>& sums) {
  const std::int64_t blocks = conv.blocks_of(conv.channels_out());
  std::vector<Panel> panels;
  std::int64_t w = 0;
  for (std::int64_t block = 0; block < blocks; block += panels.back().blocks) {
    const ChannelRange range = group_channels(conv, block);
    const std::int64_t count = block + 1 < blocks && group_channels(conv, block + 1) == range ? 2 : 1;
    panels.push_back({block, count, sums.size(), 0, w, count, 0});
    sums.emplace_back(conv, source, range);
    w += sums.back().depth * count * conv.pack();
  }
  return panels;
}
using PanelsFn = std::vector<Panel> (*)(const ConvProblem& conv, const Source& source, std::vector<Sums>& sums);

class TilesStep final : public SharedStep {
 public:
  TilesStep(const ConvProblem& conv, std::int64_t grain, std::int64_t order, PanelsFn panels, const EpilogueKernel& epilogue)
      : conv_(conv),
        order_(order),
        source_(conv, grain, order),
        panels_(panels(conv, source_, sums_)),
        panel_(grain > 1 ? bfloat16(*conv.table)->panel : conv.table->panel),
        epilogue_(epilogue) {
    if (order == kImages)
      add_images();
    else if (is_flat(conv.shape, source_))
      add_pieces();
    else
      add_lines();
    // As many lines at a time as keep the part of the input that they read in the cache, for the next panel of weights.
    std::int64_t depth = 0;
    for (const Sums& sums : sums_)
      for (const Chunk& chunk : sums.chunks) depth = std::max(depth, chunk.depth);
    const std::int64_t bytes = std::max<std::int64_t>(1, lines_.front().count * depth * kFloat / conv.shape.window.taps());
    lines_at_once_ = std::max<std::int64_t>(1, kNearBytes / bytes);
    if (source_.copied) scratch_bytes_ = static_cast<std::size_t>(source_.planes * source_.plane * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* x = reinterpret_cast<const float*>(inputs[0]);
    auto* out = reinterpret_cast<float*>(output);
    const std::int64_t in_plane = conv_.shape.window.in_count() * source_.channels;
    for (std::int64_t n = 0; n < (order_ == kImages ? 1 : conv_.shape.batch); ++n) {
      const float* from = x + n * source_.planes * in_plane;
      if (source_.copied) {
        auto* padded = reinterpret_cast<float*>(scratch);
        const auto copy = [&](std::int64_t plane, int) {
          (this->*(source_.grain > 1  ? &TilesStep::round_plane
                   : order_ == kDense ? &TilesStep::pick_plane
                                      : &TilesStep::copy_plane))(plane, from + plane * in_plane, padded + plane * source_.plane);
        };
        team.each(source_.planes, copy, operations());
        from = padded;
      }
      run_image(team, inputs, from, out, n * out_image());
    }
  }
  std::string_view algorithm() const noexcept override {
    if (source_.grain > 1) return conv_.shape.window.taps() == 1 ? "1x1 bf16" : "direct bf16";
    return conv_.shape.window.taps() == 1 ? "1x1" : kPackedTiles.name;
  }

 private:
  // Neighbouring output pixels whose rows of A are evenly spaced.
  struct Line {
    std::int64_t in, out, count;
  };

  void add_lines() {
    const Window& win = conv_.shape.window;
    for (std::int64_t line = 0; line < win.out[0] * win.out[1]; ++line) {
      const std::int64_t z = line / win.out[1], y = line % win.out[1];
      const std::int64_t pixel = (z * source_.stride[0] * source_.dims[1] + y * source_.stride[1]) * source_.dims[2];
      lines_.push_back({pixel * source_.unit, line * win.out[2] * conv_.pack(), win.out[2]});
    }
  }

  // Pieces of whole tiles of an image that is one line.
  void add_pieces() {
    const std::int64_t pixels = conv_.shape.window.out_count(), piece = order_ == kShort ? kShortPiece : kPiece;
    for (std::int64_t at = 0; at < pixels; at += piece)
      lines_.push_back({at * source_.unit, at * conv_.pack(), std::min(piece, pixels - at)});
  }

  void add_images() {
    add_lines();
    std::vector<Line> pixels;
    for (const Line& line : lines_)
      for (std::int64_t i = 0; i < line.count; ++i)
        pixels.push_back({line.in + i * source_.stride[2] * source_.unit, line.out + i * conv_.pack(), conv_.shape.batch});
    lines_ = std::move(pixels);
    a_step_ = source_.planes * source_.plane;
    out_step_ = out_image();
  }

  std::int64_t out_image() const noexcept {
    return conv_.blocks_of(conv_.channels_out()) * conv_.shape.window.out_count() * conv_.pack();
  }

  // Of one run_image().
  double operations() const noexcept {
    return 2 * conv_.shape.multiplications() / static_cast<double>(order_ == kImages ? 1 : conv_.shape.batch);
  }

  // One unit of work is a panel for some lines: its weights stay in the cache for all of them.
  void run_image(Team& team, std::byte* const* inputs, const float* x, float* out, std::int64_t image) const noexcept {
    const auto count = static_cast<std::int64_t>(panels_.size()), lines = static_cast<std::int64_t>(lines_.size());
    std::int64_t at_once = lines_at_once_;
    if (team.size() > 1) {  // enough units to keep all members busy to the end
      const std::int64_t least = (4 * team.size() + count - 1) / count;
      at_once = std::min(at_once, std::max<std::int64_t>(1, lines / least));
    }
    const std::int64_t stretches = (lines + at_once - 1) / at_once;
    team.each(
        stretches * count,
        [&](std::int64_t unit, int) {
          const std::int64_t first = unit / count * at_once;
          run_panel(inputs, x, out, image, panels_[static_cast<std::size_t>(unit % count)], first,
                    std::min(lines, first + at_once));
        },
        operations());
  }

  void run_panel(std::byte* const* inputs, const float* x, float* out, std::int64_t image, const Panel& panel, std::int64_t first,
                 std::int64_t last) const noexcept {
    const std::int64_t pack = conv_.pack(), plane = conv_.shape.window.out_count() * pack;
    const std::int64_t at = image + panel.block * plane;
    const EpilogueOperands operands = epilogue_.operands(inputs).at(panel.block * pack, at);
    const Sums& sums = sums_[panel.sums];
    PanelArgs args;
    args.a_step = a_step_;
    args.blocks = panel.blocks;
    args.out_step = out_step_;
    args.out_block = plane;
    args.width = pack;
    for (const Chunk& chunk : sums.chunks) {
      args.segments = sums.segments.data() + chunk.first;
      args.segment_count = static_cast<std::int64_t>(chunk.count);
      args.accumulate = chunk.before > 0;
      args.w = reinterpret_cast<const float*>(inputs[1]) + panel.w +
               (chunk.before * panel.w_blocks + chunk.depth * panel.w_before) * pack;
      const bool last_chunk = &chunk == &sums.chunks.back();
      for (std::int64_t line = first; line < last; ++line) {
        const Line& here = lines_[static_cast<std::size_t>(line)];
        args.rows = here.count;
        args.a = x + panel.x + here.in;
        args.out = out + at + here.out;
        args.finish = epilogue_.finish(operands.at(0, here.out), last_chunk);
        panel_(args);
        if (!last_chunk || !epilogue_.has_rest()) continue;
        for (std::int64_t b = 0; b < args.blocks; ++b)
          epilogue_.run_rest(args.out + b * plane, here.count, out_step_, pack, operands.at(b * pack, here.out + b * plane));
      }
    }
  }

  void copy_plane(std::int64_t, const float* from, float* to) const noexcept {
    const Window& win = conv_.shape.window;
    const std::int64_t unit = source_.unit, row = source_.dims[2] * unit;
    const std::int64_t left = std::min(win.begin[2], source_.dims[2]) * unit;
    const std::int64_t middle = std::max<std::int64_t>(0, std::min(win.in[2] * unit, row - left));
    for (std::int64_t z = 0; z < source_.dims[0]; ++z)
      for (std::int64_t y = 0; y < source_.dims[1]; ++y, to += row) {
        const std::int64_t in_z = z - win.begin[0], in_y = y - win.begin[1];
        if (in_z < 0 || in_z >= win.in[0] || in_y < 0 || in_y >= win.in[1]) {
          std::memset(to, 0, static_cast<std::size_t>(row * kFloat));
          continue;
        }
        std::memset(to, 0, static_cast<std::size_t>(left * kFloat));
        std::memcpy(to + left, from + (in_z * win.in[1] + in_y) * win.in[2] * unit, static_cast<std::size_t>(middle * kFloat));
        std::memset(to + left + middle, 0, static_cast<std::size_t>((row - left - middle) * kFloat));
      }
  }

  // Copies the pixels that outputs read.
  void pick_plane(std::int64_t, const float* from, float* to) const noexcept {
    const Window& win = conv_.shape.window;
    const std::int64_t unit = source_.unit;
    for (std::int64_t z = 0; z < win.out[0]; ++z)
      for (std::int64_t y = 0; y < win.out[1]; ++y)
        for (std::int64_t x = 0; x < win.out[2]; ++x, to += unit) {
          const std::int64_t in_z = win.source(0, z, 0), in_y = win.source(1, y, 0), in_x = win.source(2, x, 0);
          if (in_z < 0 || in_z >= win.in[0] || in_y < 0 || in_y >= win.in[1] || in_x < 0 || in_x >= win.in[2])
            std::memset(to, 0, static_cast<std::size_t>(unit * kFloat));
          else
            std::memcpy(to, from + ((in_z * win.in[1] + in_y) * win.in[2] + in_x) * unit,
                        static_cast<std::size_t>(unit * kFloat));
        }
  }

  // The same in bfloat16; lanes after the last channel, which may hold anything, are left out.
  void round_plane(std::int64_t plane, const float* from, float* to) const noexcept {
    const Window& win = conv_.shape.window;
    const Bfloat16& bf16 = *bfloat16(*conv_.table);
    const std::int64_t unit = source_.unit, left = std::min(win.begin[2], source_.dims[2]);
    const std::int64_t middle = std::max<std::int64_t>(0, std::min(win.in[2], source_.dims[2] - left));
    const std::int64_t channels = std::min(source_.channels, conv_.channels_in() - plane * source_.channels);
    const auto border = [&](float* at, std::int64_t pixels) {
      std::memset(at, 0, static_cast<std::size_t>(pixels * unit * kFloat));
    };
    for (std::int64_t z = 0; z < source_.dims[0]; ++z)
      for (std::int64_t y = 0; y < source_.dims[1]; ++y, to += source_.dims[2] * unit) {
        const std::int64_t in_z = z - win.begin[0], in_y = y - win.begin[1];
        if (in_z < 0 || in_z >= win.in[0] || in_y < 0 || in_y >= win.in[1]) {
          border(to, source_.dims[2]);
          continue;
        }
        border(to, left);
        border(to + (left + middle) * unit, source_.dims[2] - left - middle);
        const std::int64_t pixel = (in_z * win.in[1] + in_y) * win.in[2];
        if (!conv_.plain_input) {
          bf16.narrow(from + pixel * source_.channels, source_.channels, middle, channels, to + left * unit, unit);
          continue;
        }
        for (std::int64_t c = 0; c < channels; c += 2) {
          const float* low = from + c * win.in_count() + pixel;
          bf16.pair(low, c + 1 < channels ? low + win.in_count() : nullptr, middle, to + left * unit + c / 2, unit);
        }
      }
  }

  ConvProblem conv_;
  std::int64_t order_;
  Source source_;
  std::vector<Sums> sums_;
  std::vector<Panel> panels_;
  PanelFn panel_;
  std::vector<Line> lines_;
  std::int64_t a_step_ = source_.stride[2] * source_.unit, out_step_ = conv_.pack(), lines_at_once_ = 1;
  EpilogueKernel epilogue_;
};

bool is_empty(const ConvShape& shape) noexcept {
  return shape.batch * shape.window.out_count() * shape.in_channels * shape.out_channels * shape.window.in_count() == 0;
}

// Adds the image, its copy with borders, and the result.
void move_values(const ConvProblem& conv, const Source& source, Work& work) {
  const ConvShape& shape = conv.shape;
  const auto images = static_cast<double>(shape.batch * kFloat);
  const auto columns = static_cast<double>(conv.blocks_of(conv.channels_out()) * conv.pack());
  work.move(images * (columns * static_cast<double>(shape.window.out_count()) +
                      static_cast<double>(source.planes * shape.window.in_count() * source.channels)));
  if (source.copied) work.move(2 * images * static_cast<double>(source.planes * source.plane));
}

// Whether a piece's part of A is too large to be near for all panels of weights.
bool reads_far(const ConvProblem& conv, const Source& source) {
  const std::int64_t pixels = std::min(kPiece, conv.shape.window.out_count());
  return is_flat(conv.shape, source) && pixels > kShortPiece && pixels * conv.shape.in_channels * kFloat > kNearBytes * 3 / 2;
}

template <std::int64_t kGrain>
std::vector<std::int64_t> tiles_parameters(const ConvProblem& conv) {
  if (!conv.packable || (kGrain > 1 && bfloat16(*conv.table) == nullptr)) return {};
  const ConvShape& shape = conv.shape;
  const bool whole = shape.groups == 1 || (shape.in_channels % conv.pack() == 0 && shape.out_channels % conv.pack() == 0);
  if (!whole || is_empty(shape) || (conv.plain_input && shape.groups > 1)) return {};
  std::vector<std::int64_t> orders{kLines};
  if (kGrain == 1 && shape.window.taps() == 1 && shape.window.stride != Window::Axes{1, 1, 1} && !conv.plain_input)
    orders.push_back(kDense);
  if (kGrain == 1 && reads_far(conv, Source(conv, 1))) orders.push_back(kShort);
  if (kGrain == 1 && shape.batch > 1 && !Source(conv, 1).copied) orders.push_back(kImages);
  return orders;
}

// Time of the tile kernel for `count` rows at a time, as a multiple of its time in whole tiles: a tile of few rows waits for its
// weights (measured on Zen 4, of depth 512).
double tile_excess(const ConvProblem& conv, std::int64_t count) {
  if (conv.table->lanes == 1) return 1;
  constexpr double kWait = 2.2;  // rows that a tile of no row would take
  const double height = conv.pack() == 16 ? 14 : conv.pack() == 8 ? 6 : 12, enough = conv.pack() == 16 ? 5 : 6;
  const double rows = static_cast<double>(count), tiles = std::ceil(rows / height);
  return 1 + kWait * tiles / rows * std::max(0.0, 1 - rows / tiles / enough);
}

template <std::int64_t kGrain>
Work tiles_work(const ConvProblem& conv, std::int64_t order) {
  const ConvShape& shape = conv.shape;
  const Source source(conv, kGrain, order);
  Work work;
  const auto pixels = static_cast<double>(shape.batch * shape.window.out_count());
  const auto columns = static_cast<double>(shape.groups * conv.blocks_of(shape.out_channels) * conv.pack());
  const auto depth =
      static_cast<double>((kGrain > 1 ? Sums(conv, source).depth : shape.in_channels * shape.window.taps()) * kGrain);
  const bool flat = is_flat(shape, source);
  const std::int64_t rows = order == kImages ? shape.batch : flat ? shape.window.out_count() : shape.window.out[2];
  (kGrain > 1 ? work.pairs : work.panel) = 2 * pixels * columns * depth * tile_excess(conv, rows);
  work.streamed = columns * depth * kFloat / kGrain;
  move_values(conv, source, work);
  if (kGrain == 1 && reads_far(conv, source)) {
    // What is read again from beyond the near cache, A for each panel of weights or the weights for each piece, takes a third of
    // its time: the rest is read while the tile kernel computes.
    constexpr double kWaits = 0.3;
    const double pieces = std::ceil(pixels / static_cast<double>(kShortPiece)),
                 panels = columns / static_cast<double>(2 * conv.pack());
    work.moved += kWaits * kFloat * depth * (order == kShort ? columns * pieces : pixels * panels);
  }
  return work;
}

// Writes a row of packed weights from the rows of `turned` at its places.
void put_row(const float* turned, const std::int64_t* place, std::int64_t columns, float* row) noexcept {
  std::memcpy(row, turned + *place * columns, static_cast<std::size_t>(columns * kFloat));
}
void put_row(const float* turned, const std::int64_t* place, std::int64_t columns, std::uint16_t* row) noexcept {
  for (int i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < columns; ++j) row[2 * j + i] = place[i] < 0 ? 0 : to_bfloat16(turned[place[i] * columns + j]);
}

// [group][chunk][pair of blocks][k][columns of the pair]: in the order in which run() reads them. A k of bfloat16 is a pair.
template <std::int64_t kGrain>
Tensor tiles_pack(const ConvProblem& conv, std::int64_t, const float* w) {
  using Number = std::conditional_t<kGrain == 1, float, std::uint16_t>;
  const ConvShape& shape = conv.shape;
  const Window& win = shape.window;
  const Source source(conv, kGrain);
  const Sums sums(conv, source);
  const std::int64_t pack = conv.pack(), blocks = conv.blocks_of(shape.out_channels), taps = win.taps();
  const std::int64_t depth = shape.in_channels * taps;
  // Where each number of the segments is in a row of the weights; -1: after the last channel.
  std::vector<std::int64_t> places;
  places.reserve(static_cast<std::size_t>(sums.depth * kGrain));
  for (std::int64_t first = 0; first < shape.in_channels; first += source.channels) {
    const std::int64_t last = std::min(first + source.channels, shape.in_channels);
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t c = first; c < last; c += kGrain)
        for (std::int64_t i = c; i < c + kGrain; ++i) places.push_back(i < last ? i * taps + tap : -1);
  }
  // A panel's weights are transposed first; then whole rows of the result are put in order.
  Tensor packed = Tensor::empty(DType::f32, {shape.groups, sums.depth, blocks * pack});  // elements of 32 bits
  Tensor turned = Tensor::empty(DType::f32, {depth, 2 * pack});
  auto* to = reinterpret_cast<Number*>(packed.raw());
  for (std::int64_t g = 0; g < shape.groups; ++g, w += shape.out_channels * depth, to += sums.depth * blocks * pack * kGrain)
    for (std::int64_t block = 0; block < blocks; block += 2) {
      const std::int64_t columns = std::min<std::int64_t>(2, blocks - block) * pack;
      const std::int64_t real = std::min(columns, shape.out_channels - block * pack);
      if (real < columns) std::fill_n(turned.data<float>(), depth * columns, 0.0f);
      conv.table->transpose(w + block * pack * depth, depth, turned.data<float>(), columns, depth, real);
      const std::int64_t* place = places.data();
      Number* chunk_to = to;
      for (const Chunk& chunk : sums.chunks) {
        Number* row = chunk_to + chunk.depth * block * pack * kGrain;
        for (std::int64_t k = 0; k < chunk.depth; ++k, place += kGrain, row += columns * kGrain)
          put_row(turned.data<float>(), place, columns, row);
        chunk_to += chunk.depth * blocks * pack * kGrain;
      }
    }
  return packed;
}

template <std::int64_t kGrain>
std::unique_ptr<HostStep> tiles_make(const ConvProblem& conv, std::int64_t order, const EpilogueKernel& epilogue) {
  return std::make_unique<TilesStep>(conv, kGrain, order, &whole_panels, epilogue);
}

std::vector<std::int64_t> group_tiles_parameters(const ConvProblem& conv) {
  return single_parameter(conv.packable && !conv.plain_input && !is_empty(conv.shape));
}

Work group_tiles_work(const ConvProblem& conv, std::int64_t) {
  const Source source(conv, 1);
  double weights = 0;  // numbers, those of 0 included
  for (std::int64_t block = 0; block < conv.blocks_of(conv.channels_out()); ++block) {
    const ChannelRange range = group_channels(conv, block);
    weights += static_cast<double>((range.last - range.first) * conv.shape.window.taps() * conv.pack());
  }
  Work work;
  work.panel = 2 * static_cast<double>(conv.shape.batch * conv.shape.window.out_count()) * weights *
               tile_excess(conv, is_flat(conv.shape, source) ? conv.shape.window.out_count() : conv.shape.window.out[2]);
  work.streamed = weights * kFloat;
  move_values(conv, source, work);
  return work;
}

// [panel][k][columns of the panel]
Tensor group_tiles_pack(const ConvProblem& conv, std::int64_t, const float* w) {
  const Source source(conv, 1);
  std::vector<Sums> sums;
  const std::vector<Panel> panels = group_panels(conv, source, sums);
  const std::int64_t pack = conv.pack(), taps = conv.shape.window.taps(), in = conv.shape.in_channels;
  std::int64_t size = 0;
  for (const Panel& panel : panels) size += sums[panel.sums].depth * panel.blocks * pack;
  Tensor packed = Tensor::empty(DType::f32, {size});
  auto* to = packed.data<float>();
  for (const Panel& panel : panels) {
    const ChannelRange range = group_channels(conv, panel.block);
    const std::int64_t first = panel.block * pack, last = first + panel.blocks * pack;
    for (std::int64_t start = range.first; start < range.last;) {  // the channels of a block, by tap, as in Sums
      const std::int64_t end = std::min(range.last, (start / pack + 1) * pack);
      for (std::int64_t tap = 0; tap < taps; ++tap)
        for (std::int64_t c = start; c < end; ++c)
          for (std::int64_t channel = first; channel < last; ++channel)
            *to++ = channel < conv.channels_out() && channel / conv.shape.out_channels == c / in
                        ? w[(channel * in + c % in) * taps + tap]
                        : 0.0f;
      start = end;
    }
  }
  return packed;
}

std::unique_ptr<HostStep> group_tiles_make(const ConvProblem& conv, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<TilesStep>(conv, 1, kLines, &group_panels, epilogue);
}

}  // namespace

const ConvAlgorithm kGroupTiles{"direct", &group_tiles_parameters, &group_tiles_work, &group_tiles_pack, &group_tiles_make};
const ConvAlgorithm kPackedTiles{"direct", &tiles_parameters<1>, &tiles_work<1>, &tiles_pack<1>, &tiles_make<1>};
extern const ConvAlgorithm kPackedPairs;
const ConvAlgorithm kPackedPairs{"direct bf16", &tiles_parameters<2>, &tiles_work<2>, &tiles_pack<2>, &tiles_make<2>};

}  // namespace walle

// Direct convolution in packed layouts by the tile kernel: a row of A is an output pixel, a segment of it the channels of one
// block under one tap, so that nothing is gathered (no im2col). A 1x1 kernel is a matrix product with packed pixels as rows.
//
// An element is a float, or a pair of bfloat16 of neighbouring channels (`grain` 2): the input is then rounded while it is copied
// to add its borders.
#include <algorithm>
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
  std::int64_t depth = 0;            // elements of the segments
};

// The input with its borders, as the segments address it.
struct Source {
  std::int64_t grain = 1;     // channels in an element
  Window::Axes dims{};        // sizes of the padded image
  bool copied = false;        // true where there is a border, or elements are pairs
  std::int64_t channels = 1;  // channels of a pixel
  std::int64_t unit = 1;      // elements of a pixel
  std::int64_t plane = 0;     // elements of a channel or block of channels
  std::int64_t planes = 0;    // planes of one image

  Source(const ConvProblem& conv, std::int64_t grain_of) : grain(grain_of), copied(grain_of > 1) {
    const Window& win = conv.shape.window;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
      const std::int64_t reach = (win.out[axis] - 1) * win.stride[axis] + (win.kernel[axis] - 1) * win.dilation[axis] + 1;
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

// The terms of each output. The order of the weights, chunks included, depends on the kernel alone and not on the image, so that
// plans of several shapes share them.
struct Sums {
  std::vector<Segment> segments;
  std::vector<Chunk> chunks;
  std::int64_t depth = 0;  // elements of all segments

  Sums(const ConvProblem& conv, const Source& source) {
    const Window& win = conv.shape.window;
    const std::int64_t most = kNearBytes / (2 * conv.pack() * kFloat), channels = conv.shape.in_channels;
    for (std::int64_t first = 0, plane = 0; first < channels; first += source.channels, ++plane)
      for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
        for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
          for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
            const std::int64_t pixel =
                (kz * win.dilation[0] * source.dims[1] + ky * win.dilation[1]) * source.dims[2] + kx * win.dilation[2];
            const Segment next{plane * source.plane + pixel * source.unit,
                               (std::min(source.channels, channels - first) + source.grain - 1) / source.grain};
            depth += next.length;
            if (chunks.empty() || chunks.back().depth + next.length > most) chunks.push_back({segments.size(), 0, 0});
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
};

class TilesStep final : public SharedStep {
 public:
  TilesStep(const ConvProblem& conv, std::int64_t grain, const EpilogueKernel& epilogue)
      : conv_(conv),
        source_(conv, grain),
        sums_(conv, source_),
        panel_(grain > 1 ? bfloat16(*conv.table)->panel : conv.table->panel),
        epilogue_(epilogue) {
    const Window& win = conv.shape.window;
    const bool flat = source_.dims == win.in && win.out == win.in && win.taps() == 1 && win.stride == Window::Axes{1, 1, 1};
    const std::int64_t lines = flat ? 1 : win.out[0] * win.out[1];
    width_ = flat ? win.out_count() : win.out[2];
    for (std::int64_t line = 0; line < lines; ++line) {
      const std::int64_t z = line / win.out[1], y = line % win.out[1];
      const std::int64_t pixel = (z * win.stride[0] * source_.dims[1] + y * win.stride[1]) * source_.dims[2];
      lines_.push_back({flat ? 0 : pixel * source_.unit, line * width_ * conv.pack(), width_});
    }
    if (flat) split(lines_.front());
    // As many lines at a time as keep the part of the input that they read in the cache, for the next panel of weights.
    std::int64_t depth = 0;
    for (const Chunk& chunk : sums_.chunks) depth = std::max(depth, chunk.depth);
    const std::int64_t bytes = std::max<std::int64_t>(1, lines_.front().count * depth * kFloat / win.taps());
    lines_at_once_ = std::max<std::int64_t>(1, kNearBytes / bytes);
    if (source_.copied) scratch_bytes_ = static_cast<std::size_t>(source_.planes * source_.plane * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* x = reinterpret_cast<const float*>(inputs[0]);
    auto* out = reinterpret_cast<float*>(output);
    const std::int64_t in_plane = conv_.shape.window.in_count() * source_.channels;
    const std::int64_t out_image = conv_.blocks_of(conv_.channels_out()) * conv_.shape.window.out_count() * conv_.pack();
    for (std::int64_t n = 0; n < conv_.shape.batch; ++n) {
      const float* from = x + n * source_.planes * in_plane;
      if (source_.copied) {
        auto* padded = reinterpret_cast<float*>(scratch);
        const auto copy = [&](std::int64_t plane, int) {
          (this->*(source_.grain > 1 ? &TilesStep::round_plane : &TilesStep::copy_plane))(plane, from + plane * in_plane,
                                                                                          padded + plane * source_.plane);
        };
        team.each(source_.planes, copy, operations());
        from = padded;
      }
      run_image(team, inputs, from, out, n * out_image);
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

  // Splits a long line into pieces of whole tiles.
  void split(Line whole) {
    constexpr std::int64_t kPiece = 168;  // a multiple of every instruction set's tile height
    const std::int64_t in_step = conv_.shape.window.stride[2] * source_.unit;
    lines_.clear();
    for (std::int64_t at = 0; at < whole.count; at += kPiece)
      lines_.push_back({whole.in + at * in_step, whole.out + at * conv_.pack(), std::min(kPiece, whole.count - at)});
  }

  double operations() const noexcept { return 2 * conv_.shape.multiplications() / static_cast<double>(conv_.shape.batch); }

  // One unit of work is a pair of blocks of channels for some lines: its weights stay in the cache for all of them.
  void run_image(Team& team, std::byte* const* inputs, const float* x, float* out, std::int64_t image) const noexcept {
    const std::int64_t panels = (conv_.blocks_of(conv_.shape.out_channels) + 1) / 2, count = conv_.shape.groups * panels;
    const auto lines = static_cast<std::int64_t>(lines_.size());
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
          run_panel(inputs, x, out, image, unit % count / panels, unit % panels, first, std::min(lines, first + at_once));
        },
        operations());
  }

  void run_panel(std::byte* const* inputs, const float* x, float* out, std::int64_t image, std::int64_t group, std::int64_t panel,
                 std::int64_t first, std::int64_t last) const noexcept {
    const std::int64_t pack = conv_.pack(), plane = conv_.shape.window.out_count() * pack;
    const std::int64_t blocks = conv_.blocks_of(conv_.shape.out_channels), block = 2 * panel;
    const auto* w = reinterpret_cast<const float*>(inputs[1]) + group * sums_.depth * blocks * pack;
    const std::int64_t at = image + (group * blocks + block) * plane;
    const EpilogueOperands operands = epilogue_.operands(inputs).at((group * blocks + block) * pack, at);
    x += group * conv_.blocks_of(conv_.shape.in_channels) * source_.plane;
    PanelArgs args;
    args.a_step = conv_.shape.window.stride[2] * source_.unit;
    args.blocks = std::min<std::int64_t>(2, blocks - block);
    args.out_step = pack;
    args.out_block = plane;
    args.width = pack;
    for (std::size_t c = 0; c < sums_.chunks.size(); ++c) {
      const Chunk& chunk = sums_.chunks[c];
      args.segments = sums_.segments.data() + chunk.first;
      args.segment_count = static_cast<std::int64_t>(chunk.count);
      args.accumulate = c > 0;
      args.w = w + chunk.depth * block * pack;
      w += chunk.depth * blocks * pack;
      const bool last_chunk = c + 1 == sums_.chunks.size();
      for (std::int64_t line = first; line < last; ++line) {
        const Line& here = lines_[static_cast<std::size_t>(line)];
        args.rows = here.count;
        args.a = x + here.in;
        args.out = out + at + here.out;
        args.finish = epilogue_.finish(operands.at(0, here.out), last_chunk);
        panel_(args);
        if (!last_chunk || !epilogue_.has_rest()) continue;
        for (std::int64_t b = 0; b < args.blocks; ++b)
          epilogue_.run_rest(args.out + b * plane, here.count, pack, pack, operands.at(b * pack, here.out + b * plane));
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
  Source source_;
  Sums sums_;
  PanelFn panel_;
  std::vector<Line> lines_;
  std::int64_t width_ = 0, lines_at_once_ = 1;
  EpilogueKernel epilogue_;
};

template <std::int64_t kGrain>
std::vector<std::int64_t> tiles_parameters(const ConvProblem& conv) {
  if (!conv.packable || (kGrain > 1 && bfloat16(*conv.table) == nullptr)) return {};
  const ConvShape& shape = conv.shape;
  const bool whole = shape.groups == 1 || (shape.in_channels % conv.pack() == 0 && shape.out_channels % conv.pack() == 0);
  const bool empty =
      shape.batch * shape.window.out_count() * shape.in_channels * shape.out_channels * shape.window.in_count() == 0;
  return single_parameter(whole && !empty && !(conv.plain_input && shape.groups > 1));
}

template <std::int64_t kGrain>
Work tiles_work(const ConvProblem& conv, std::int64_t) {
  const ConvShape& shape = conv.shape;
  const Source source(conv, kGrain);
  Work work;
  const auto pixels = static_cast<double>(shape.batch * shape.window.out_count());
  const auto columns = static_cast<double>(shape.groups * conv.blocks_of(shape.out_channels) * conv.pack());
  const auto depth =
      static_cast<double>((kGrain > 1 ? Sums(conv, source).depth : shape.in_channels * shape.window.taps()) * kGrain);
  (kGrain > 1 ? work.pairs : work.panel) = 2 * pixels * columns * depth;
  work.streamed = columns * depth * kFloat / kGrain;
  work.moved = pixels * columns * kFloat +
               static_cast<double>(shape.batch * source.planes * shape.window.in_count() * source.channels * kFloat);
  if (source.copied) work.moved += 2.0 * static_cast<double>(shape.batch * source.planes * source.plane * kFloat);
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
std::unique_ptr<HostStep> tiles_make(const ConvProblem& conv, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<TilesStep>(conv, kGrain, epilogue);
}

}  // namespace

const ConvAlgorithm kPackedTiles{"direct", &tiles_parameters<1>, &tiles_work<1>, &tiles_pack<1>, &tiles_make<1>};
extern const ConvAlgorithm kPackedPairs;
const ConvAlgorithm kPackedPairs{"direct bf16", &tiles_parameters<2>, &tiles_work<2>, &tiles_pack<2>, &tiles_make<2>};

}  // namespace walle

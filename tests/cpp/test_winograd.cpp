// Tests of Winograd's convolution on every instruction set of this CPU, compared with a direct convolution in float64: in one and
// two dimensions, odd sizes, padding on either side, channels that do not fill a block, groups, batches, bias, residual and
// clamp.
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/products/convolution.h"
#include "check.h"

using namespace walle;

namespace {

std::vector<float> numbers(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& x : result) x = normal(random);
  return result;
}

// Converts [batch, channels, plane] to the packed layout, with `padding` in lanes without a channel; and the offset of an
// element.
std::int64_t packed_place(std::int64_t image, std::int64_t channel, std::int64_t at, std::int64_t channels, std::int64_t plane,
                          std::int64_t c) {
  return ((image * ((channels + c - 1) / c) + channel / c) * plane + at) * c + channel % c;
}
std::vector<float> packed(const std::vector<float>& x, std::int64_t batch, std::int64_t channels, std::int64_t plane,
                          std::int64_t c, float padding) {
  std::vector<float> result(static_cast<std::size_t>(batch * ((channels + c - 1) / c) * plane * c), padding);
  for (std::int64_t i = 0; i < batch * channels * plane; ++i)
    result[static_cast<std::size_t>(packed_place(i / plane / channels, i / plane % channels, i % plane, channels, plane, c))] =
        x[static_cast<std::size_t>(i)];
  return result;
}

// Each sum of products in float64, and the sum of their magnitudes.
struct Sums {
  std::vector<double> value, magnitude;
};
Sums direct(const ConvShape& shape, const std::vector<float>& x, const std::vector<float>& w) {
  const Window& win = shape.window;
  Sums sums;
  for (std::int64_t n = 0; n < shape.batch; ++n)
    for (std::int64_t m = 0; m < shape.groups * shape.out_channels; ++m)
      for (std::int64_t i = 0; i < win.out[1]; ++i)
        for (std::int64_t j = 0; j < win.out[2]; ++j) {
          double value = 0, magnitude = 0;
          for (std::int64_t k = 0; k < shape.in_channels; ++k)
            for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
              for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
                const std::int64_t row = win.source(1, i, ky), column = win.source(2, j, kx);
                if (row < 0 || row >= win.in[1] || column < 0 || column >= win.in[2]) continue;
                const std::int64_t channel = (n * shape.groups + m / shape.out_channels) * shape.in_channels + k;
                const double product =
                    double{x[static_cast<std::size_t>((channel * win.in[1] + row) * win.in[2] + column)]} *
                    double{w[static_cast<std::size_t>(((m * shape.in_channels + k) * win.kernel[1] + ky) * win.kernel[2] + kx)]};
                value += product;
                magnitude += std::fabs(product);
              }
          sums.value.push_back(value);
          sums.magnitude.push_back(magnitude);
        }
  return sums;
}

// Operands that all units of a shape share, and their convolution.
struct Operands {
  std::vector<float> x, w, bias, residual;
  Sums sums;

  Operands(std::mt19937_64& random, const ConvProblem& conv)
      : x(numbers(random, conv.shape.batch * conv.channels_in() * conv.shape.window.in_count())),
        w(numbers(random, conv.channels_out() * conv.shape.in_channels * conv.shape.window.taps())),
        bias(numbers(random, conv.channels_out())),
        residual(numbers(random, conv.shape.batch * conv.channels_out() * conv.shape.window.out_count())),
        sums(direct(conv.shape, x, w)) {}
};

// Returns the largest allowed error, in units of float32's rounding of the largest sum of magnitudes. It is at least twice the
// error of these seeds.
double bound(std::int64_t unit, std::int64_t taps, bool square) {
  const std::int64_t size = unit + taps - 1;
  return size == 4 ? (square ? 6 : 5) : size == 6 ? (square ? 70 : 16) : square ? 130 : 24;
}

void convolve(const ConvProblem& conv, const Operands& operands, std::int64_t unit, bool with_bias, bool with_residual,
              bool clamped) {
  const auto& [x, w, bias, residual, sums] = operands;
  const ConvShape& shape = conv.shape;
  const Table& table = *conv.table;
  const Window& win = shape.window;
  const std::int64_t c = table.pack, in_plane = win.in_count(), out_plane = win.out_count(), channels = conv.channels_out();
  std::vector<float> in = packed(x, shape.batch, conv.channels_in(), in_plane, c, std::nanf("")),
                     add = packed(residual, shape.batch, channels, out_plane, c, 0.0f), out(add.size(), std::nanf("")),
                     last_bias = bias;
  last_bias.resize(static_cast<std::size_t>((channels + c - 1) / c * c));  // whole blocks
  const float low = clamped ? -1.0f : -INFINITY, high = clamped ? 6.0f : INFINITY;
  const Epilogue epilogue{with_bias, with_residual ? Residual::to_sums : Residual::none, low, high, {}};
  Tensor weights = kPackedWinograd.pack(conv, unit, w.data());
  const std::unique_ptr<HostStep> step = kPackedWinograd.make(conv, unit, EpilogueKernel(epilogue, table));
  Tensor scratch = Tensor::empty(DType::u8, {static_cast<std::int64_t>(step->scratch_bytes())});
  std::byte* inputs[] = {reinterpret_cast<std::byte*>(in.data()), weights.raw(),
                         with_bias ? reinterpret_cast<std::byte*>(last_bias.data()) : nullptr,
                         with_residual ? reinterpret_cast<std::byte*>(add.data()) : nullptr};
  static Team two(2);
  step->run_by(two, inputs, reinterpret_cast<std::byte*>(out.data()), scratch.raw());
  const std::vector<float> shared = out;
  step->run(inputs, reinterpret_cast<std::byte*>(out.data()), scratch.raw());
  check::report(std::memcmp(out.data(), shared.data(), out.size() * sizeof(float)) == 0, __FILE__, __LINE__, "a team differs");

  double greatest = 0, error = 0;
  for (const double magnitude : sums.magnitude) greatest = std::max(greatest, magnitude);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.value.size()); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t channel = i / out_plane % channels;
    double expected = sums.value[at];
    if (with_bias) expected += bias[static_cast<std::size_t>(channel)];
    if (with_residual) expected += residual[at];
    expected = std::clamp<double>(expected, low, high);
    const float got =
        out[static_cast<std::size_t>(packed_place(i / out_plane / channels, channel, i % out_plane, channels, out_plane, c))];
    error = std::isnan(got) ? INFINITY : std::max(error, std::fabs(got - expected));
  }
  const bool square = win.kernel[1] == win.kernel[2];
  const std::int64_t taps = std::max(win.kernel[1], win.kernel[2]);
  const double units = error / (greatest + 8) / 0x1p-24;
  check::report(units <= bound(unit, taps, square), __FILE__, __LINE__,
                std::string(table.name) + " F(" + std::to_string(unit) + ", " + to_string({win.kernel[1], win.kernel[2]}) +
                    ") of " + std::to_string(conv.channels_in()) + "x" + to_string({win.in[1], win.in[2]}) + " to " +
                    std::to_string(channels) + "x" + to_string({win.out[1], win.out[2]}) + ": " + std::to_string(units) +
                    " roundings");
  bool finite = true;  // lanes without a channel too
  for (const float y : out) finite = finite && std::isfinite(y);
  check::report(finite, __FILE__, __LINE__, "a lane is not finite");
}

void convolutions(const Table& table, int rounds) {
  std::mt19937_64 random(11);
  const std::int64_t kernels[][2] = {{3, 3}, {3, 3}, {5, 5}, {1, 3}, {3, 1}, {1, 5}, {5, 1}};
  for (int round = 0; round < check::rounds(rounds); ++round) {
    ConvShape shape;
    shape.batch = check::whole(random, 1, 3);
    shape.groups = round % 6 == 5 ? 2 : 1;
    shape.in_channels = shape.groups > 1 ? table.pack : check::whole(random, 1, 37);
    shape.out_channels = shape.groups > 1 ? table.pack * check::whole(random, 1, 3) : check::whole(random, 1, 53);
    Window& win = shape.window;
    win.rank = 2;
    for (const std::size_t axis : {1, 2}) {
      win.kernel[axis] = kernels[round % 7][axis - 1];
      win.begin[axis] = check::whole(random, 0, 2);
      win.end[axis] = check::whole(random, 0, 2);
      win.in[axis] = check::whole(random, win.kernel[axis], round % 4 == 0 ? 31 : 13);
      win.out[axis] = win.in[axis] + win.begin[axis] + win.end[axis] - win.kernel[axis] + 1;
    }
    const ConvProblem conv{shape, &table};
    const std::vector<std::int64_t> units = kPackedWinograd.parameters(conv);
    CHECK(!units.empty() && units[0] == 2);
    const Operands operands(random, conv);
    for (const std::int64_t unit : units) {
      convolve(conv, operands, unit, round % 2 == 0, round % 3 == 0, round % 5 == 0);
      const Work work = kPackedWinograd.work(conv, unit);
      CHECK(work.panel > 0 && work.lanes > 0 && work.streamed > 0 && work.moved > 0);
    }
  }
}

// Cases where it does not apply.
void refusals(const Table& table) {
  ConvProblem conv{{}, &table};
  conv.shape.in_channels = conv.shape.out_channels = 2 * table.pack;
  Window& win = conv.shape.window;
  win.kernel = {1, 3, 3};
  win.in = {1, 20, 20};
  win.out = {1, 18, 18};
  CHECK((kPackedWinograd.parameters(conv) == std::vector<std::int64_t>{2, 4, 5, 6}));
  const auto refused = [&](auto change) {
    ConvProblem changed = conv;
    change(changed);
    return kPackedWinograd.parameters(changed).empty();
  };
  CHECK(refused([](ConvProblem& c) { c.plain_input = true; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.stride[1] = 2; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.dilation[2] = 2; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.kernel = {1, 7, 7}; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.kernel = {1, 3, 5}; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.kernel = {1, 1, 1}; }));
  CHECK(refused([](ConvProblem& c) { c.shape.window.kernel[0] = 2; }));
  CHECK(refused([](ConvProblem& c) { c.shape.groups = 2, c.shape.in_channels = 3; }));
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    convolutions(table, 100);
    refusals(table);
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}

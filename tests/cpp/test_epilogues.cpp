// Tests of packed convolutions with a fused activation and residual, by every algorithm on every instruction set of this CPU,
// compared with float64: in buffers of exactly the needed size, by one thread and by two. They include depth multipliers and
// merged groups, where non-finite values of one group must not reach another.
#include <cmath>
#include <vector>

#include "atomic/products/convolution.h"
#include "check.h"

using namespace walle;

namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::vector<float> numbers(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal(0.0f, 0.5f);
  std::vector<float> result(size(count));
  for (float& x : result) x = normal(random);
  return result;
}

std::size_t place(std::int64_t image, std::int64_t channel, std::int64_t at, std::int64_t channels, std::int64_t plane,
                  std::int64_t c) {
  return size(((image * ((channels + c - 1) / c) + channel / c) * plane + at) * c + channel % c);
}
// Lanes without a channel hold NaN.
std::vector<float> packed(const std::vector<float>& x, std::int64_t batch, std::int64_t channels, std::int64_t plane,
                          std::int64_t c) {
  std::vector<float> result(size(batch * ((channels + c - 1) / c) * plane * c), std::nanf(""));
  for (std::int64_t i = 0; i < batch * channels * plane; ++i)
    result[place(i / plane / channels, i / plane % channels, i % plane, channels, plane, c)] = x[size(i)];
  return result;
}

double sum_of(const ConvShape& shape, const std::vector<float>& x, const std::vector<float>& w, std::int64_t image,
              std::int64_t m, std::int64_t at) {
  const Window& win = shape.window;
  double total = 0;
  for (std::int64_t k = 0; k < shape.in_channels; ++k)
    for (std::int64_t tap = 0; tap < win.taps(); ++tap) {
      const std::int64_t row = win.source(1, at / win.out[2], tap / win.kernel[2]);
      const std::int64_t column = win.source(2, at % win.out[2], tap % win.kernel[2]);
      if (row < 0 || row >= win.in[1] || column < 0 || column >= win.in[2]) continue;
      const std::int64_t channel = (image * shape.groups + m / shape.out_channels) * shape.in_channels + k;
      total += double{x[size((channel * win.in[1] + row) * win.in[2] + column)]} *
               double{w[size((m * shape.in_channels + k) * win.taps() + tap)]};
    }
  return total;
}

// Operands of a convolution, and its exact sums with their bias.
struct Case {
  ConvShape shape;
  bool infinite;
  std::vector<float> x, w, residual, bias, slope;
  std::vector<double> sums;

  Case(const ConvShape& of, bool with_infinity) : shape(of), infinite(with_infinity) {
    std::mt19937_64 random(7);
    const std::int64_t in_plane = shape.window.in_count(), plane = shape.window.out_count(),
                       channels = shape.groups * shape.out_channels;
    x = numbers(random, shape.batch * shape.groups * shape.in_channels * in_plane);
    if (infinite) x[size(in_plane * shape.in_channels + in_plane / 2)] = INFINITY;  // element of the first image's second group
    w = numbers(random, channels * shape.in_channels * shape.window.taps());
    residual = numbers(random, shape.batch * channels * plane);
    bias = numbers(random, channels);
    slope = numbers(random, channels);
    for (std::int64_t i = 0; i < shape.batch * channels * plane; ++i) {
      const std::int64_t m = i / plane % channels;
      sums.push_back(sum_of(shape, x, w, i / plane / channels, m, i % plane) + double{bias[size(m)]});
    }
  }
};

void convolve(const ConvAlgorithm& algorithm, const ConvProblem& conv, const Epilogue& epilogue, std::int64_t parameter,
              const Case& given) {
  const Table& table = *conv.table;
  const ConvShape& shape = conv.shape;
  const std::int64_t c = table.pack, in_plane = shape.window.in_count(), plane = shape.window.out_count(),
                     channels = conv.channels_out();
  const std::vector<float>&x = given.x, &residual = given.residual;
  std::vector<float> bias = given.bias, slope = given.slope;
  bias.resize(size((channels + c - 1) / c * c));
  slope.resize(bias.size());
  std::vector<float> in = packed(x, shape.batch, conv.channels_in(), in_plane, c),
                     more = packed(residual, shape.batch, channels, plane, c);
  Tensor weights = algorithm.pack(conv, parameter, given.w.data());
  const std::unique_ptr<HostStep> step = algorithm.make(conv, parameter, EpilogueKernel(epilogue, table));
  std::byte* inputs[] = {reinterpret_cast<std::byte*>(in.data()), weights.raw(), reinterpret_cast<std::byte*>(bias.data()),
                         reinterpret_cast<std::byte*>(more.data()), reinterpret_cast<std::byte*>(slope.data())};
  for (const int members : {1, 2}) {
    Team team(members);
    std::vector<float> out(more.size(), -7.0f);
    std::vector<std::byte> scratch(step->scratch_bytes() * size(step->scratch_each() ? members : 1) + 64);
    auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
    step->run_by(team, inputs, reinterpret_cast<std::byte*>(out.data()), aligned);
    double error = 0;
    for (std::int64_t i = 0; i < shape.batch * channels * plane; ++i) {
      const std::int64_t m = i / plane % channels, image = i / plane / channels;
      double wanted = given.sums[size(i)];
      if (!std::isfinite(wanted)) continue;
      wanted = std::clamp(wanted, -1.0, 2.0);
      if (std::holds_alternative<ChannelSlope>(epilogue.activation))
        wanted = wanted < 0 ? wanted * double{slope[size(m)]} : wanted;
      else
        wanted = std::tanh(wanted);
      const double apart =
          std::fabs(double{out[place(image, m, i % plane, channels, plane, c)]} - wanted - double{residual[size(i)]});
      error = std::isnan(apart) ? INFINITY : std::max(error, apart);
    }
    // Bound in roundings of sums of this size: Winograd's (see test_winograd.cpp), or one for each term.
    const auto terms = static_cast<double>(shape.in_channels * shape.window.taps());
    const double bound = std::max(130.0, terms + 3) * 0x1p-24 * (terms / 4 + 8);
    check::report(error <= bound, __FILE__, __LINE__,
                  std::string(table.name) + " " + std::string(algorithm.name) + "(" + std::to_string(parameter) + ") of " +
                      std::to_string(shape.groups) + " groups of " + std::to_string(shape.in_channels) + " to " +
                      std::to_string(shape.out_channels) + ": " + std::to_string(error));
  }
}

ConvShape shape_of(std::int64_t groups, std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t kernel = 3,
                   std::int64_t dilation = 1) {
  ConvShape shape;
  shape.batch = 2;
  shape.groups = groups;
  shape.in_channels = in;
  shape.out_channels = out;
  Window& win = shape.window;
  win.rank = 2;
  for (const std::size_t axis : {1, 2}) {
    win.kernel[axis] = kernel;
    win.dilation[axis] = axis == 1 ? dilation : 1;
    win.begin[axis] = win.end[axis] = kernel / 2;
    win.stride[axis] = stride;
    win.in[axis] = axis == 1 ? 9 : 11;
    win.out[axis] = (win.in[axis] + kernel / 2 * 2 - (kernel - 1) * win.dilation[axis] - 1) / stride + 1;
  }
  return shape;
}

}  // namespace

int main() {
  std::vector<Case> cases;
  for (const ConvShape& shape :
       {shape_of(1, 20, 37, 1), shape_of(1, 20, 21, 2), shape_of(19, 1, 1, 2), shape_of(19, 1, 3, 1), shape_of(5, 1, 20, 1),
        shape_of(8, 4, 4, 1), shape_of(6, 3, 5, 1), shape_of(2, 48, 32, 1),
        // 1x1: images in one product, pixels left out, few outputs.
        shape_of(1, 20, 37, 1, 1), shape_of(1, 37, 20, 2, 1), shape_of(1, 37, 2, 1, 1), shape_of(1, 32, 1, 1, 1),
        shape_of(1, 7, 2, 1, 1), shape_of(2, 48, 32, 2, 1),
        // Kernels, strides and dilations of depthwise rows.
        shape_of(33, 1, 1, 1, 5, 2), shape_of(17, 1, 1, 2, 7), shape_of(17, 1, 2, 1, 1), shape_of(17, 1, 1, 2, 4),
        // Groups of widths that fill no block, of more and of fewer outputs.
        shape_of(7, 8, 8, 2), shape_of(5, 12, 12, 1, 5), shape_of(3, 20, 20, 1), shape_of(2, 24, 24, 2, 1),
        shape_of(3, 40, 40, 1, 3, 2), shape_of(3, 20, 6, 1, 1), shape_of(3, 6, 20, 2, 1), shape_of(4, 2, 34, 1)}) {
    cases.emplace_back(shape, false);
    if (shape.groups > 1) cases.emplace_back(shape, true);
  }
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    Epilogue epilogue{true, Residual::behind_activation, -1.0f, 2.0f, UnaryOp::Tanh};
    if (table.prelu != nullptr) epilogue.activation = ChannelSlope();
    for (const Case& one : cases)
      for (const ConvAlgorithm* algorithm : conv_algorithms()) {
        if (algorithm->pack == nullptr || algorithm->name == "direct bf16") continue;  // plain layouts; bfloat16
        if (one.infinite && algorithm->name == "winograd") continue;                   // tiles spread an infinity within a group
        const ConvProblem conv{one.shape, &table};
        for (const std::int64_t parameter : algorithm->parameters(conv)) convolve(*algorithm, conv, epilogue, parameter, one);
      }
  }
  return check::failures != 0;
}

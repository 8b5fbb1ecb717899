// Depthwise convolutions of plain layouts whose channels are lanes, and their gradients by input and by weights: random windows
// on every instruction set of this CPU against float64, and the same bits by one, two and three threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/products/lane_depthwise.h"
#include "check.h"

using namespace walle;

namespace {

using Floats = std::vector<float>;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

Floats numbers(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  Floats result(size(count));
  for (float& number : result) number = normal(random);
  return result;
}

// Sums in float64, and those of the absolute terms.
struct Exact {
  std::vector<double> totals, terms;
  std::vector<std::int64_t> counts;

  explicit Exact(std::size_t count) : totals(count), terms(count), counts(count) {}
  void add(std::int64_t at, float a, float b) {
    const double term = double{a} * double{b};
    totals[size(at)] += term;
    terms[size(at)] += std::fabs(term);
    ++counts[size(at)];
  }
  bool near(const Floats& found) const {
    for (std::size_t i = 0; i < found.size(); ++i)
      if (!(std::fabs(found[i] - totals[i]) <= 1.2e-7 * static_cast<double>(counts[i] + 3) * terms[i])) return false;
    return found.size() == totals.size();
  }
};

// A step's result by one, two and three threads, in scratch that holds NaN at first.
Floats run(const HostStep& step, Floats& first, Floats& second, std::size_t count) {
  Floats expected;
  for (const int threads : {1, 2, 3}) {
    Team team(threads);
    Tensor scratch = Tensor::empty(DType::f32, {static_cast<std::int64_t>(step.scratch_bytes() / sizeof(float)) * threads});
    std::fill_n(scratch.data<float>(), scratch.size(), std::nanf(""));
    Floats result(count, std::nanf(""));
    std::byte* inputs[] = {reinterpret_cast<std::byte*>(first.data()), reinterpret_cast<std::byte*>(second.data())};
    step.run_by(team, inputs, reinterpret_cast<std::byte*>(result.data()), scratch.raw());
    if (threads == 1) expected = result;
    CHECK(std::memcmp(expected.data(), result.data(), count * sizeof(float)) == 0);
  }
  return expected;
}

// A convolution of float32, its operands and the gradient of its result.
struct Case {
  ConvShape shape;
  Floats x, w, g;

  Case(std::mt19937_64& random, const ConvShape& given) : shape(given) {
    const Window& win = shape.window;
    x = numbers(random, shape.batch * shape.groups * win.in_count());
    w = numbers(random, shape.groups * win.taps());
    g = numbers(random, shape.batch * shape.groups * win.out_count());
  }

  void compare(const Table& table) {
    const Window& win = shape.window;
    Exact y(g.size()), of_x(x.size()), of_w(w.size());
    for (std::int64_t plane = 0; plane < shape.batch * shape.groups; ++plane)
      for (std::int64_t at = 0; at < win.out_count(); ++at)
        for (std::int64_t tap = 0; tap < win.taps(); ++tap) {
          const std::int64_t row = win.source(1, at / win.out[2], tap / win.kernel[2]),
                             column = win.source(2, at % win.out[2], tap % win.kernel[2]);
          if (row < 0 || row >= win.in[1] || column < 0 || column >= win.in[2]) continue;
          const std::int64_t from = plane * win.in_count() + row * win.in[2] + column, to = plane * win.out_count() + at,
                             weight = plane % shape.groups * win.taps() + tap;
          y.add(to, x[size(from)], w[size(weight)]);
          of_x.add(from, g[size(to)], w[size(weight)]);
          of_w.add(weight, g[size(to)], x[size(from)]);
        }
    const int before = check::failures;
    const ConvProblem problem{shape, &table, false};
    CHECK(kLaneDepthwise.parameters(problem).size() == 1);
    CHECK(y.near(run(*kLaneDepthwise.make(problem, 0, EpilogueKernel()), x, w, g.size())));
    CHECK(of_x.near(run(*make_lane_input_gradient(shape, table), g, w, x.size())));
    CHECK(of_w.near(run(*make_lane_weight_gradient(shape, table), x, g, w.size())));
    if (check::failures != before)
      std::fprintf(stderr, "  %s: %d x %d channels, %d x %d by %d x %d, steps %d and %d, dilations %d and %d\n",
                   std::string(table.name).c_str(), int(shape.batch), int(shape.groups), int(win.in[1]), int(win.in[2]),
                   int(win.kernel[1]), int(win.kernel[2]), int(win.stride[1]), int(win.stride[2]), int(win.dilation[1]),
                   int(win.dilation[2]));
  }
};

ConvShape shape_of(std::int64_t batch, std::int64_t channels, const Dims& in, const Dims& kernel, const Attributes& given) {
  Attributes attributes = given;
  attributes.set("group", channels);
  Dims x{batch, channels}, w{channels, 1};
  x.insert(x.end(), in.begin(), in.end());
  w.insert(w.end(), kernel.begin(), kernel.end());
  return conv_shape(x, w, DType::f32, attributes);
}

// Pads are at times larger than the kernel's reach, and windows at times leave columns over.
void random_windows(const Table& table) {
  std::mt19937_64 random(35);
  for (int round = 0; round < check::rounds(120) && check::failures < 5; ++round) {
    Dims in, kernel, strides, dilations, pads;
    for (int axis = 0; axis < 2; ++axis) {
      kernel.push_back(check::whole(random, 1, check::whole(random, 1, 7)));
      dilations.push_back(check::whole(random, 1, 2));
      strides.push_back(check::whole(random, 1, 3));
      in.push_back(check::whole(random, 1, 20));
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int64_t reach = (kernel[i % 2] - 1) * dilations[i % 2] + 1;
      pads.push_back(check::whole(random, 0, 3) + std::max<std::int64_t>(0, (reach - in[i % 2] + 1) / 2));
    }
    const Attributes attributes{{"strides", strides}, {"dilations", dilations}, {"pads", pads}};
    Case(random, shape_of(check::whole(random, 1, 3), check::whole(random, 1, 37), in, kernel, attributes)).compare(table);
  }
}

// Several bands of rows, rows that are longer than a band, and one axis.
void large_planes(const Table& table) {
  std::mt19937_64 random(36);
  const Dims ones{1, 1, 1, 1};
  Case(random, shape_of(2, 5, {70, 61}, {3, 3}, {{"pads", ones}})).compare(table);
  Case(random, shape_of(1, 3, {90, 70}, {5, 3}, {{"pads", ones}, {"strides", Dims{2, 2}}})).compare(table);
  Case(random, shape_of(1, 2, {9, 1100}, {3, 3}, {{"strides", Dims{3, 1}}, {"dilations", Dims{4, 1}}})).compare(table);
  Case(random, shape_of(2, 18, {1201}, {4}, {{"pads", Dims{2, 3}}})).compare(table);
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    random_windows(kernels(set.name));
    large_planes(kernels(set.name));
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}

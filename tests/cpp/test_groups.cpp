// Tests of merged groups that do not fill a block: lanes after the last channel do not affect the result, and a NaN of one group
// stays in that group. When plain algorithms are candidates.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "atomic/products/convolution.h"
#include "check.h"

using namespace walle;

namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kIn = 9;

const ConvAlgorithm& merged_groups() {
  for (const ConvAlgorithm* algorithm : conv_algorithms())
    if (algorithm->name == "merged groups") return *algorithm;
  std::abort();
}

Floats normal(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> distribution;
  Floats made(static_cast<std::size_t>(count));
  for (float& one : made) one = distribution(random);
  return made;
}

// The real lanes of a result.
Floats run(const ConvProblem& conv, const HostStep& step, Floats& x, Tensor& w, Floats& residual, Team& team) {
  Floats out(residual.size());
  std::vector<std::byte> scratch(step.scratch_bytes() * (step.scratch_each() ? static_cast<std::size_t>(team.size()) : 1) + 64);
  const auto bytes = [](float* at) { return reinterpret_cast<std::byte*>(at); };
  std::byte* inputs[] = {bytes(x.data()), bytes(w.data<float>()), nullptr, bytes(residual.data())};
  auto* aligned = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64);
  step.run_by(team, inputs, bytes(out.data()), aligned);
  Floats real;
  const std::int64_t pack = conv.pack(), pixels = conv.shape.window.out_count();
  for (std::int64_t channel = 0; channel < conv.channels_out(); ++channel)
    for (std::int64_t i = 0; i < pixels; ++i)
      real.push_back(out[static_cast<std::size_t>((channel / pack * pixels + i) * pack + channel % pack)]);
  return real;
}

void groups(const Table& table, std::int64_t count, std::int64_t each) {
  const std::int64_t channels = count * each;
  const ConvProblem conv{
      conv_shape({1, channels, kIn, kIn}, {channels, each, 3, 3}, DType::f32, {{"group", count}, {"pads", Dims{1, 1, 1, 1}}}),
      &table};
  const std::int64_t pack = conv.pack(), pixels = kIn * kIn, blocks = conv.blocks_of(channels);
  std::mt19937_64 random(5);
  const Floats w = normal(random, channels * each * 9);
  const ConvAlgorithm& algorithm = merged_groups();
  Epilogue epilogue;
  epilogue.residual = Residual::to_sums;
  for (const std::int64_t parameter : algorithm.parameters(conv)) {
    Tensor packed = algorithm.pack(conv, parameter, w.data());
    const auto step = algorithm.make(conv, parameter, EpilogueKernel(epilogue, table));
    Team team(2);
    Floats x = normal(random, blocks * pixels * pack), residual = normal(random, blocks * pixels * pack);
    const Floats wanted = run(conv, *step, x, packed, residual, team);
    Floats filled = residual;
    for (std::int64_t channel = channels; channel < blocks * pack; ++channel)
      for (std::int64_t i = 0; i < pixels; ++i)
        filled[static_cast<std::size_t>((channel / pack * pixels + i) * pack + channel % pack)] = NAN;
    const Floats found = run(conv, *step, x, packed, filled, team);
    CHECK(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
    x[0] = NAN;  // an element of the first group
    const Floats with_nan = run(conv, *step, x, packed, residual, team);
    for (std::int64_t i = 0; i < channels * pixels; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(i < each * pixels || std::fabs(with_nan[at] - wanted[at]) <= 1e-3f);
    }
    CHECK(std::isnan(with_nan[0]));
  }
}

// Algorithms of plain layouts are candidates beside packed ones.
void plain_candidates(const Table& table) {
  ConvProblem conv{conv_shape({1, 32, kIn, kIn}, {32, 32, 1, 1}, DType::f32, {}), &table};
  const auto has = [&](std::string_view name) {
    const auto choices = weigh_conv(conv, Rates{1, 1, 1, 1, 1}, {});
    return std::any_of(choices.begin(), choices.end(), [&](const ConvChoice& one) { return one.algorithm->name == name; });
  };
  CHECK(has("direct") && has("1x1 GEMM"));
}

}  // namespace

int main() {
  int tried = 0;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    plain_candidates(kernels(set.name));
    for (const auto& [count, each] : {std::pair{3, 4}, {9, 2}, {5, 4}, {7, 4}}) groups(kernels(set.name), count, each), ++tried;
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0 || tried == 0;
}

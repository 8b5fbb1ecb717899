// Depthwise convolution of plain layouts, by weights that may be computed: planes as rows without borders (phased_planes.h), by
// the kernel of packed layouts, a vector of neighbouring pixels at a time.
#include <algorithm>
#include <cstring>

#include "atomic/products/convolution.h"
#include "atomic/products/phased_planes.h"

namespace walle {

namespace {

bool planes_apply(const ConvShape& shape, const Table& table) {
  return shape.dtype == DType::f32 && shape.in_channels == 1 && table.depthwise != nullptr && PhasedPlanes::applies(shape.window);
}

// Weights of one channel, each in all lanes of a vector.
void spread(const float* w, std::int64_t taps, std::int64_t pack, float* to) noexcept {
  for (std::int64_t tap = 0; tap < taps; ++tap) std::fill_n(to + tap * pack, pack, w[tap]);
}

std::size_t bytes_of(std::int64_t floats) { return (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64; }

class PlaneConvStep final : public SharedStep {
 public:
  PlaneConvStep(const ConvProblem& problem, const EpilogueKernel& epilogue)
      : shape_(problem.shape), table_(*problem.table), planes_(shape_.window, table_.pack), epilogue_(epilogue) {
    scratch_bytes_ = bytes_of(planes_.input_floats() + planes_.result_floats() + planes_.taps() * table_.pack);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t channels = shape_.groups * shape_.out_channels, taps = planes_.taps(), plane = shape_.window.out_count();
    const auto* x = reinterpret_cast<const float*>(inputs[0]);
    const auto* w = reinterpret_cast<const float*>(inputs[1]);
    auto* out = reinterpret_cast<float*>(output);
    const auto scratch_of = [&](int member) {
      return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    };
    for (int member = 0; member < team.size(); ++member) std::fill_n(scratch_of(member), planes_.input_floats(), 0.0f);
    const StopPoll start;
    team.each(
        shape_.batch * channels,
        [&](std::int64_t at, int member) {
          StopPoll poll = start;
          const std::int64_t n = at / channels, m = at % channels;
          float *input = scratch_of(member), *result = input + planes_.input_floats(),
                *weights = result + planes_.result_floats();
          planes_.fill_input(x + (n * shape_.groups + m / shape_.out_channels) * shape_.window.in_count(), input);
          spread(w + m * taps, taps, table_.pack, weights);
          LaneArgs args;
          args.in = input;
          args.in_step = table_.pack;
          args.taps = planes_.offsets().data();
          args.tap_count = taps;
          args.w = weights;
          args.out = result;
          const std::int64_t at_once = std::max<std::int64_t>(StopPoll::kInterval / (taps * table_.pack), 1);
          for (std::int64_t left = planes_.result_vectors(); left > 0; left -= args.count) {
            args.count = std::min(left, at_once);
            if (!poll.proceed(args.count * table_.pack * taps)) return;
            table_.depthwise(args);
            args.in += args.count * table_.pack;
            args.out += args.count * table_.pack;
          }
          planes_.take_result(result, out + at * plane);
          if (!epilogue_.empty())
            epilogue_.run_channel(reinterpret_cast<std::byte*>(out + at * plane), plane, inputs, m, at * plane);
        },
        2 * shape_.multiplications());
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return "depthwise planes"; }

 private:
  ConvShape shape_;
  const Table& table_;
  PhasedPlanes planes_;
  EpilogueKernel epilogue_;
};

Work plane_work(const ConvProblem& problem, std::int64_t) {
  // Rows are copied in and out, each in the time of moving these bytes, and weights are spread.
  constexpr double kRowBytes = 512, kPlaneBytes = 4096;
  const PhasedPlanes planes(problem.shape.window, problem.pack());
  const auto results = static_cast<double>(problem.shape.batch * problem.channels_out());
  const Window& win = problem.shape.window;
  Work work;
  work.lanes = 2 * results * static_cast<double>(planes.taps() * planes.result_vectors() * problem.pack());
  work.moved = results * (kPlaneBytes + kRowBytes * static_cast<double>(win.in[1] + win.out[1]) +
                          4 * static_cast<double>(sizeof(float)) * static_cast<double>(win.in_count() + win.out_count()));
  return work;
}

}  // namespace

extern const ConvAlgorithm kPlaneDepthwise;
const ConvAlgorithm kPlaneDepthwise{
    "depthwise planes", [](const ConvProblem& problem) { return single_parameter(planes_apply(problem.shape, *problem.table)); },
    &plane_work, nullptr,
    [](const ConvProblem& problem, std::int64_t, const EpilogueKernel& epilogue) -> std::unique_ptr<HostStep> {
      return std::make_unique<PlaneConvStep>(problem, epilogue);
    }};

}  // namespace walle

#include "exec/rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/bfloat16.h"

namespace walle {

namespace {

// The best of a few runs: other work on the machine only ever adds.
template <class F>
double least_us(F&& run) {
  double least = 1e30;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    least = std::min(least, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

Tensor ones(std::int64_t count) {
  Tensor tensor = Tensor::empty(DType::f32, {count});
  std::fill_n(tensor.data<float>(), count, 1.0f);
  return tensor;
}

// The operations of an element of `grain` numbers count as many times.
double measure_panel(const Table& table, PanelFn panel, std::int64_t grain) {
  constexpr std::int64_t kRows = 84, kDepth = 256;
  const std::int64_t pack = table.pack;
  const Tensor a = ones(kRows * pack * (kDepth / pack)), w = ones(kDepth * 2 * pack), out = ones(kRows * 2 * pack);
  std::vector<Segment> segments;
  for (std::int64_t k = 0; k < kDepth; k += pack) segments.push_back({k * kRows, pack});
  PanelArgs args;
  args.rows = kRows;
  args.a = a.data<float>();
  args.a_step = pack;
  args.segments = segments.data();
  args.segment_count = static_cast<std::int64_t>(segments.size());
  args.blocks = 2;
  args.w = w.data<float>();
  args.out = out.data<float>();
  args.out_step = pack;
  args.out_block = kRows * pack;
  args.width = pack;
  return 2.0 * static_cast<double>(kRows * kDepth * grain * 2 * pack) / least_us([&] { panel(args); });
}

double measure_lanes(const Table& table) {
  constexpr std::int64_t kWidth = 60, kTaps = 9;
  const std::int64_t pack = table.pack;
  const Tensor in = ones((kWidth + 2) * 3 * pack), w = ones(kTaps * pack), out = ones(kWidth * pack);
  std::vector<Tap> taps;
  for (std::int64_t t = 0; t < kTaps; ++t) taps.push_back({(t / 3 * (kWidth + 2) + t % 3) * pack, t * pack});
  LaneArgs args;
  args.count = kWidth;
  args.in = in.data<float>();
  args.in_step = pack;
  args.taps = taps.data();
  args.tap_count = kTaps;
  args.w = w.data<float>();
  args.out = out.data<float>();
  constexpr int kTimes = 16;
  return 2.0 * kTimes * static_cast<double>(kWidth * kTaps * pack) / least_us([&] {
           for (int i = 0; i < kTimes; ++i) table.depthwise(args);
         });
}

double measure_copy(std::int64_t bytes) {
  const Tensor from = ones(bytes / 4), to = ones(bytes / 4);
  return 2.0 * static_cast<double>(bytes) / least_us([&] { std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(bytes)); });
}

// One row against weights that no cache holds, by the best backend's kernel.
double measure_stream() {
  constexpr std::int64_t kDepth = 2048, kPanels = 96;
  const Table& table = kernels();
  const std::int64_t columns = 2 * table.pack;
  const Tensor a = ones(kDepth), w = ones(kDepth * columns * kPanels), out = ones(columns);
  const Segment segment{0, kDepth};
  PanelArgs args;
  args.rows = 1;
  args.a = a.data<float>();
  args.a_step = kDepth;
  args.segments = &segment;
  args.segment_count = 1;
  args.blocks = 2;
  args.out = out.data<float>();
  args.out_block = args.width = table.pack;
  return static_cast<double>(kDepth * columns * kPanels) * sizeof(float) / least_us([&] {
           for (std::int64_t panel = 0; panel < kPanels; ++panel) {
             args.w = w.data<float>() + panel * kDepth * columns;
             table.panel(args);
           }
         });
}

// Memory is the machine's, whatever the backend.
struct MemoryRates {
  double streamed = measure_stream(), moved = measure_copy(std::int64_t{1} << 19);
};

Rates measure(const Table& table) {
  static const MemoryRates memory;
  const double pairs = bfloat16(table) == nullptr ? 0 : measure_panel(table, bfloat16(table)->panel, 2);
  return {measure_panel(table, table.panel, 1), pairs, measure_lanes(table), memory.streamed, memory.moved};
}

}  // namespace

double Rates::us(const Work& work) const noexcept {
  const double products = work.panel / panel + (work.pairs > 0 ? work.pairs / pairs : 0);
  return std::max(products, work.streamed / streamed) + work.lanes / lanes + work.moved / moved;
}

const Rates& rates(const Table& table) {
  static std::mutex mutex;
  static std::map<std::string_view, Rates> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(table.name);
  return found != known.end() ? found->second : known.emplace(table.name, measure(table)).first->second;
}

}  // namespace walle

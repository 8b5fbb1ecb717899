#include "atomic/rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "atomic/default_rates.h"
#include "core/fork_mutex.h"
#include "core/tensor.h"
#include "kernels/bfloat16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace walle {

namespace {

constexpr int kLeastRuns = 5;

// Return the least time of a few runs, and of as many as begin within `seconds`: other work on the machine only adds time.
template <class F, class G = void (*)()>
double least_us(double seconds, F&& run, G&& before = +[] {}) {
  using Clock = std::chrono::steady_clock;
  const auto first = Clock::now();
  double least = 1e30;
  for (int i = 0; i < kLeastRuns || Clock::now() - first < std::chrono::duration<double>(seconds); ++i) {
    before();
    const auto begin = Clock::now();
    run();
    least = std::min(least, std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return least;
}

Tensor ones(std::int64_t count) {
  Tensor tensor = Tensor::empty(DType::f32, {count});
  std::fill_n(tensor.data<float>(), count, 1.0f);
  return tensor;
}

// Measures the tile kernel; an element has `grain` numbers, each counted.
double measure_panel(const Table& table, PanelFn panel, std::int64_t grain, double seconds) {
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
  return 2.0 * static_cast<double>(kRows * kDepth * grain * 2 * pack) / least_us(seconds, [&] { panel(args); });
}

double measure_lanes(const Table& table, double seconds) {
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
  return 2.0 * kTimes * static_cast<double>(kWidth * kTaps * pack) / least_us(seconds, [&] {
           for (int i = 0; i < kTimes; ++i) table.depthwise(args);
         });
}

double measure_copy(std::int64_t bytes, double seconds) {
  const Tensor from = ones(bytes / 4), to = ones(bytes / 4);
  return 2.0 * static_cast<double>(bytes) /
         least_us(seconds, [&] { std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(bytes)); });
}

// Flushes a tensor from every cache, so that a few megabytes are read like a large array. False where the CPU has no instruction
// for it.
bool flush(const Tensor& tensor) noexcept {
#if defined(__x86_64__) || defined(__aarch64__)
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = tensor.size() * static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t at = 0; at < bytes; at += kLine) {
#if defined(__x86_64__)
    _mm_clflush(tensor.raw() + at);
#else
    asm volatile("dc civac, %0" : : "r"(tensor.raw() + at) : "memory");
#endif
  }
#if defined(__x86_64__)
  _mm_mfence();
#else
  asm volatile("dsb sy" : : : "memory");
#endif
  return true;
#else
  return false;
#endif
}

// Measures one row times weights that no cache holds, by the best instruction set's kernel.
double measure_stream(double seconds) {
  constexpr std::int64_t kDepth = 2048, kBytes = 4 << 20, kBeyondCaches = 64 << 20;
  const Table& table = kernels();
  const std::int64_t columns = 2 * table.pack;
  const bool flushes = flush(ones(1));
  const std::int64_t panels = (flushes ? kBytes : kBeyondCaches) / (kDepth * columns * static_cast<std::int64_t>(sizeof(float)));
  const Tensor a = ones(kDepth), w = ones(kDepth * columns * panels), out = ones(columns);
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
  const double us = least_us(
      seconds,
      [&] {
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          args.w = w.data<float>() + panel * kDepth * columns;
          table.panel(args);
        }
      },
      [&] { flush(w); });
  return static_cast<double>(w.size()) * sizeof(float) / us;
}

// Rates of the machine's memory, the same for all instruction sets.
struct MemoryRates {
  double streamed, moved;
  explicit MemoryRates(double seconds) : streamed(measure_stream(seconds)), moved(measure_copy(std::int64_t{1} << 19, seconds)) {}
};

Rates measure(const Table& table, const MemoryRates& memory, double seconds) {
  const double panel = measure_panel(table, table.panel, 1, seconds);
  const double pairs = bfloat16(table) == nullptr ? panel : measure_panel(table, bfloat16(table)->panel, 2, seconds);
  return {panel, pairs, measure_lanes(table, seconds), memory.streamed, memory.moved};
}

struct Sourced {
  Rates rates;
  std::string source;
};

Sourced uncalibrated(std::string_view set) {
  if (const ShippedRates* shipped = shipped_rates(this_cpu(), set))
    return {shipped->rates, "shipped: " + std::string(shipped->family)};
  return {formula_rates(set), "formula"};
}

// The rates of each instruction set that was asked for. Never destroyed: threads may plan while the process exits.
struct Known {
  ForkMutex mutex;
  std::map<std::string_view, Sourced> rates;
};
Known& known() {
  static Known& all = *new Known;
  return all;
}

// The caller holds the mutex.
const Sourced& sourced(const Table& table) {
  const auto found = known().rates.find(table.name);
  if (found != known().rates.end()) return found->second;
  return known().rates.emplace(table.name, uncalibrated(table.name)).first->second;
}

}  // namespace

double Rates::us(const Work& work) const noexcept {
  const double products = work.panel / panel + work.pairs / pairs, read = work.streamed / (streamed * weights_ratio);
  const double computed = weights_wait ? products + read : std::max(products, read);
  const double near = work.moved + (weights_evict ? 0 : work.retained), far = work.far + (weights_evict ? work.retained : 0);
  return computed + work.lanes / lanes + near / moved + far / (kSharedRatio * streamed) + step_us;
}

Rates Rates::for_weights(double bytes, double mean) const noexcept {
  constexpr double kColdStepUs = 0.5;  // least time of a step whose code and operands weights have evicted
  Rates rates = *this;
  rates.weights_wait = bytes > kSharedBytes;
  rates.weights_evict = mean > kNearBytes;
  if (bytes <= kNearBytes)
    rates.weights_ratio = std::max(1.0, moved / streamed);
  else
    rates.step_us = kColdStepUs;
  if (bytes > kNearBytes && bytes <= kSharedBytes) rates.weights_ratio = kSharedRatio;
  return rates;
}

std::span<const RateName> rate_names() noexcept {
  static constexpr std::array<RateName, 5> names{{{"panel", &Rates::panel},
                                                  {"pairs", &Rates::pairs},
                                                  {"lanes", &Rates::lanes},
                                                  {"streamed", &Rates::streamed},
                                                  {"moved", &Rates::moved}}};
  return names;
}

Rates rates(const Table& table) {
  const std::lock_guard lock(known().mutex);
  return sourced(table).rates;
}

std::string rates_source(const Table& table) {
  const std::lock_guard lock(known().mutex);
  return sourced(table).source;
}

void set_rates(const Table& table, const Rates& rates) {
  for (const RateName& one : rate_names())
    if (!std::isfinite(rates.*one.rate) || rates.*one.rate <= 0)
      throw Error(ErrorKind::backend, "rate '" + std::string(one.name) + "' of " + std::string(table.name) + " is " +
                                          std::to_string(rates.*one.rate) + ", it must be finite and above 0");
  const std::lock_guard lock(known().mutex);
  known().rates.insert_or_assign(table.name, Sourced{rates, "calibrated"});
}

Rates measure_rates(const Table& table, double seconds) { return measure(table, MemoryRates(seconds), seconds); }

double peak_gflops(const Table& table, double seconds) {
  constexpr std::int64_t kRounds = 20000;
  float sum = 0;
  const double us = least_us(seconds, [&] { sum += table.peak(kRounds); });
  volatile float kept = sum;  // volatile: the compiler removes nothing
  static_cast<void>(kept);
  return 2.0 * kRounds * kPeakChains * table.lanes / us / 1e3;
}

}  // namespace walle

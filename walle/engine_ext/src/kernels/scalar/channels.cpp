// Kernels by channel and gates in plain loops: the reference, and float64's in every instruction set.
#include "kernels/channels.h"

#include "kernels/scalar/set.h"

namespace walle::scalar {

namespace {

// Return the sum of f(i) for i < count, in partial sums that the compiler keeps in vectors.
template <class F>
double sum_of(std::int64_t count, F&& f) noexcept {
  constexpr std::int64_t kPartials = 8;
  double part[kPartials] = {};
  std::int64_t i = 0;
  for (; i + kPartials <= count; i += kPartials)
    for (std::int64_t j = 0; j < kPartials; ++j) part[j] += f(i + j);
  for (; i < count; ++i) part[0] += f(i);
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

// Return the sum of f(i) for the place i of each element of the rows.
template <class F>
double sum_of_rows(const ChannelRows& rows, F&& f) noexcept {
  double sum = 0;
  for (std::int64_t row = 0; row < rows.rows; ++row)
    sum += sum_of(rows.count, [&](std::int64_t i) { return f(row * rows.step + i); });
  return sum;
}

template <class T>
void moments(const void* in, const ChannelRows& rows, double* out) noexcept {
  const auto* x = static_cast<const T*>(in);
  const double sum = sum_of_rows(rows, [x](std::int64_t i) { return static_cast<double>(x[i]); });
  const double mean = sum / static_cast<double>(rows.rows * rows.count);
  out[0] = mean;
  out[1] = sum_of_rows(rows, [x, mean](std::int64_t i) {
    const double apart = static_cast<double>(x[i]) - mean;
    return apart * apart;
  });
}

// g where the gate lets it pass, else 0.
template <class T>
struct Gated {
  T a, b, low, high;
  bool has_high;

  explicit Gated(const ChannelGate& gate)
      : a(static_cast<T>(gate.a)),
        b(static_cast<T>(gate.b)),
        low(static_cast<T>(gate.low)),
        high(static_cast<T>(gate.high)),
        has_high(gate.has_high) {}
  T operator()(T g, T x) const noexcept {
    const T y = a * x + b;
    return (y > low) & (!has_high | (y < high)) ? g : T{0};
  }
};

template <class T>
void sums(const void* gradient, const void* in, double centre, const ChannelGate* gate, const ChannelRows& rows,
          double* out) noexcept {
  const auto *g = static_cast<const T*>(gradient), *x = static_cast<const T*>(in);
  const auto run = [&](auto&& passed) {
    out[0] = sum_of_rows(rows, [&](std::int64_t i) { return static_cast<double>(passed(g[i], x[i])); });
    out[1] = sum_of_rows(
        rows, [&](std::int64_t i) { return static_cast<double>(passed(g[i], x[i])) * (static_cast<double>(x[i]) - centre); });
  };
  if (gate != nullptr)
    run(Gated<T>(*gate));
  else
    run([](T value, T) { return value; });
}

template <class T>
void affine(const AffineArgs& args) noexcept {
  const auto *x = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.g);
  auto* out = static_cast<T*>(args.out);
  const T a = static_cast<T>(args.a), b = static_cast<T>(args.b), p = static_cast<T>(args.p), low = static_cast<T>(args.low),
          high = static_cast<T>(args.high);
  const auto run = [&](auto&& f) {
    for (std::int64_t i = 0; i < args.count; ++i) {
      const T value = f(i);
      out[i] = value < low ? low : value > high ? high : value;
    }
  };
  if (g == nullptr)
    run([&](std::int64_t i) { return a * x[i] + b; });
  else if (args.gate == nullptr)
    run([&](std::int64_t i) { return a * x[i] + b + p * g[i]; });
  else
    run([&, gate = Gated<T>(*args.gate)](std::int64_t i) { return a * x[i] + b + p * gate(g[i], x[i]); });
}

template <class T>
void gate(const GateArgs& args) noexcept {
  const auto *g = static_cast<const T*>(args.g), *x = static_cast<const T*>(args.x);
  auto* out = static_cast<T*>(args.out);
  const T low = static_cast<T>(args.low), high = static_cast<T>(args.high);
  const bool above = !args.has_low, below = !args.has_high;
  if (args.includes_bounds)
    for (std::int64_t i = 0; i < args.count; ++i) out[i] = (!above & (x[i] < low)) | (!below & (x[i] > high)) ? T{0} : g[i];
  else
    for (std::int64_t i = 0; i < args.count; ++i) out[i] = (above | (x[i] > low)) & (below | (x[i] < high)) ? g[i] : T{0};
}

template <class T>
double prelu_gradient(const void* gradient, const void* in, double slope, void* result, std::int64_t count) noexcept {
  const auto *g = static_cast<const T*>(gradient), *x = static_cast<const T*>(in);
  auto* out = static_cast<T*>(result);
  const T factor = static_cast<T>(slope);
  return sum_of(count, [&](std::int64_t i) {
    const T own = g[i], value = x[i], product = own * value, scaled = own * factor;
    out[i] = value > 0 ? own : scaled;
    return value > 0 ? 0.0 : static_cast<double>(product);
  });
}

template <class T>
void prelu_gradient_row(const void* gradient, const void* in, const void* factors, void* result, void* products,
                        std::int64_t count) noexcept {
  const auto *g = static_cast<const T*>(gradient), *x = static_cast<const T*>(in), *slopes = static_cast<const T*>(factors);
  auto *out = static_cast<T*>(result), *sums = static_cast<T*>(products);
  for (std::int64_t i = 0; i < count; ++i) {
    const T own = g[i], value = x[i], product = own * value, scaled = own * slopes[i];
    out[i] = value > 0 ? own : scaled;
    sums[i] += value > 0 ? T{0} : product;
  }
}

template <class T>
constexpr ChannelKernels kKernels{&moments<T>, &sums<T>, &affine<T>, &gate<T>, &prelu_gradient<T>, &prelu_gradient_row<T>};

}  // namespace

void fill_channels(Table& table) noexcept {
  table.channels[0] = &kKernels<float>;
  table.channels[1] = &kKernels<double>;
}

}  // namespace walle::scalar

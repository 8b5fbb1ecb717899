// Operators by channel, axis 1 of (batch, channels, ...), for normalisation by batch in training and its gradients (§4.2):
// statistics of each channel in one pass over memory, and what they are used for in another. float32 and float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "atomic/channel_gate.h"
#include "core/stop.h"
#include "kernels/channels.h"

namespace walle {

namespace {

constexpr std::int64_t kPieceElements = 1 << 14;  // least work of a thread at once

struct Sizes {
  std::int64_t batch, channels, plane;

  explicit Sizes(const Dims& shape) : batch(shape[0]), channels(shape[1]), plane(1) {
    for (std::size_t axis = 2; axis < shape.size(); ++axis) plane *= shape[axis];
  }
  std::int64_t each() const noexcept { return batch * plane; }  // elements of one channel
  double operations() const noexcept { return 4.0 * static_cast<double>(each() * channels); }
};

// Mean and sum of squared differences from it of the numbers so far. Joins those of further numbers (Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
struct Moments {
  double count = 0, mean = 0, squares = 0;

  void join(double more, double other, double other_squares) noexcept {
    const double total = count + more, apart = other - mean;
    mean += apart * more / total;
    squares += other_squares + apart * apart * count * more / total;
    count = total;
  }
};

// Calls work(first, last) for pieces of the channels, by a team.
template <class F>
void each_channels(const Sizes& sizes, Team& team, F&& work) noexcept {
  const std::int64_t step = std::max<std::int64_t>(kPieceElements / std::max<std::int64_t>(sizes.each(), 1), 1);
  team.each((sizes.channels + step - 1) / step,
            [&](std::int64_t i, int) { work(i * step, std::min((i + 1) * step, sizes.channels)); }, sizes.operations());
}

// Calls block(offset, rows) for the elements of a channel: a part of a plane, or several planes.
template <class F>
void each_block(const Sizes& sizes, std::int64_t channel, StopPoll& poll, F&& block) noexcept {
  const std::int64_t at_once = std::max<std::int64_t>(kChannelBlock / std::max<std::int64_t>(sizes.plane, 1), 1);
  const std::int64_t step = sizes.channels * sizes.plane;
  for (std::int64_t n = 0; n < sizes.batch; n += at_once) {
    const std::int64_t planes = std::min(at_once, sizes.batch - n), first = n * step + channel * sizes.plane;
    if (!poll.proceed(planes * sizes.plane)) return;
    for (std::int64_t i = 0; i < sizes.plane; i += kChannelBlock)
      block(first + i, ChannelRows{planes, std::min(kChannelBlock, sizes.plane - i), step});
  }
}

template <class T>
class ChannelMomentsStep final : public SharedStep {
 public:
  explicit ChannelMomentsStep(const StepRequest& request)
      : sizes_(request.inputs[0].shape), kernel_(request.table.channels[sizeof(T) / 8]->moments) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* x = reinterpret_cast<const T*>(inputs[0]);
    auto* out = reinterpret_cast<T*>(output);
    const auto put = [&](std::int64_t channel, double mean, double squares) {
      out[channel] = static_cast<T>(mean);
      out[sizes_.channels + channel] = static_cast<T>(std::max(squares, 0.0) / static_cast<double>(sizes_.each()));
    };
    if (sizes_.each() == 0) {
      std::fill_n(out, 2 * sizes_.channels, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    each_channels(sizes_, team, [&](std::int64_t first, std::int64_t last) {
      StopPoll poll;
      if (sizes_.plane == 1) {
        of_columns(x, first, last, poll, put);
        return;
      }
      for (std::int64_t channel = first; channel < last; ++channel) {
        Moments all;
        each_block(sizes_, channel, poll, [&](std::int64_t offset, const ChannelRows& rows) {
          double block[2];
          kernel_(x + offset, rows, block);
          all.join(static_cast<double>(rows.rows * rows.count), block[0], block[1]);
        });
        put(channel, all.mean, all.squares);
      }
    });
  }

 private:
  // Channels that follow each other in memory, in two passes.
  template <class F>
  void of_columns(const T* x, std::int64_t first, std::int64_t last, StopPoll& poll, F&& put) const noexcept {
    constexpr std::int64_t kStrip = 64;
    for (; first < last && poll.proceed(2 * kStrip * sizes_.batch); first += kStrip) {
      const std::int64_t count = std::min(kStrip, last - first);
      double mean[kStrip] = {}, squares[kStrip] = {};
      for (std::int64_t n = 0; n < sizes_.batch; ++n)
        for (std::int64_t c = 0; c < count; ++c) mean[c] += static_cast<double>(x[n * sizes_.channels + first + c]);
      for (std::int64_t c = 0; c < count; ++c) mean[c] /= static_cast<double>(sizes_.batch);
      for (std::int64_t n = 0; n < sizes_.batch; ++n)
        for (std::int64_t c = 0; c < count; ++c) {
          const double apart = static_cast<double>(x[n * sizes_.channels + first + c]) - mean[c];
          squares[c] += apart * apart;
        }
      for (std::int64_t c = 0; c < count; ++c) put(first + c, mean[c], squares[c]);
    }
  }

  Sizes sizes_;
  decltype(ChannelKernels::moments) kernel_;
};

// The gates of all channels in a run, from operands of a step: moments, scale and bias of the normalisation behind which they
// are.
template <class T>
class Gates {
 public:
  Gates(const NormalGate& gate, std::byte* const* operands, std::int64_t channels, std::byte* scratch) noexcept : gate_(gate) {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(operands[i]); };
    T *a = reinterpret_cast<T*>(scratch), *b = a + channels;
    find_normal_factors(at(0), at(1), at(2), channels, gate.epsilon, a, b);
    a_ = a;
    b_ = b;
  }
  static std::size_t scratch_bytes(std::int64_t channels) noexcept { return 2 * static_cast<std::size_t>(channels) * sizeof(T); }

  ChannelGate at(std::int64_t channel) const noexcept {
    return {static_cast<double>(a_[channel]), static_cast<double>(b_[channel]), gate_.low, gate_.high.value_or(0),
            gate_.high.has_value()};
  }

 private:
  const NormalGate& gate_;
  const T *a_, *b_;
};

// Operands g, x and centre; with a gate, the moments, the scale and the bias of its normalisation.
template <class T>
class ChannelSumsStep final : public SharedStep {
 public:
  explicit ChannelSumsStep(const StepRequest& request) : ChannelSumsStep(request.inputs[0].shape, request.table, {}) {}
  ChannelSumsStep(const Dims& shape, const Table& table, const std::optional<NormalGate>& gate)
      : sizes_(shape), kernel_(table.channels[sizeof(T) / 8]->sums), gate_(gate) {
    if (gate_) scratch_bytes_ = Gates<T>::scratch_bytes(sizes_.channels);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto *g = reinterpret_cast<const T*>(inputs[0]), *x = reinterpret_cast<const T*>(inputs[1]),
               *centre = reinterpret_cast<const T*>(inputs[2]);
    auto* out = reinterpret_cast<T*>(output);
    std::optional<Gates<T>> gates;
    if (gate_) gates.emplace(*gate_, inputs + 3, sizes_.channels, scratch);
    each_channels(sizes_, team, [&](std::int64_t first, std::int64_t last) {
      StopPoll poll;
      if (sizes_.plane == 1 && !gates) {
        of_columns(g, x, centre, out, first, last, poll);
        return;
      }
      for (std::int64_t channel = first; channel < last; ++channel) {
        double sum = 0, product = 0;
        const ChannelGate gate = gates ? gates->at(channel) : ChannelGate{};
        each_block(sizes_, channel, poll, [&](std::int64_t offset, const ChannelRows& rows) {
          double block[2];
          kernel_(g + offset, x + offset, static_cast<double>(centre[channel]), gates ? &gate : nullptr, rows, block);
          sum += block[0];
          product += block[1];
        });
        out[channel] = static_cast<T>(sum);
        out[sizes_.channels + channel] = static_cast<T>(product);
      }
    });
  }
  std::string_view algorithm() const noexcept override { return gate_ ? "gated" : ""; }

 private:
  void of_columns(const T* g, const T* x, const T* centre, T* out, std::int64_t first, std::int64_t last,
                  StopPoll& poll) const noexcept {
    constexpr std::int64_t kStrip = 64;
    for (; first < last && poll.proceed(kStrip * sizes_.batch); first += kStrip) {
      const std::int64_t count = std::min(kStrip, last - first);
      double sum[kStrip] = {}, product[kStrip] = {};
      for (std::int64_t n = 0; n < sizes_.batch; ++n)
        for (std::int64_t c = 0; c < count; ++c) {
          const std::int64_t at = n * sizes_.channels + first + c;
          const auto gradient = static_cast<double>(g[at]);
          sum[c] += gradient;
          product[c] += gradient * (static_cast<double>(x[at]) - static_cast<double>(centre[first + c]));
        }
      for (std::int64_t c = 0; c < count; ++c) {
        out[first + c] = static_cast<T>(sum[c]);
        out[sizes_.channels + first + c] = static_cast<T>(product[c]);
      }
    }
  }

  Sizes sizes_;
  decltype(ChannelKernels::sums) kernel_;
  std::optional<NormalGate> gate_;
};

// Computes a * x + b + p * g with numbers a, b and p for each channel, limited to low and high. b may be null, g with p.
template <class T>
struct Affine {
  const T *x, *a, *b, *g, *p;
  T* out;
  const Gates<T>* gates = nullptr;  // gates of g; none where a channel has one number of each image
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();

  void run(const Sizes& sizes, const ChannelKernels& kernels, Team& team) const noexcept {
    const bool by_rows = sizes.plane == 1 && gates == nullptr;
    const std::int64_t planes = by_rows ? sizes.batch : sizes.batch * sizes.channels;
    const std::int64_t size = by_rows ? sizes.channels : sizes.plane;
    const std::int64_t step = std::max<std::int64_t>(kPieceElements / std::max<std::int64_t>(size, 1), 1);
    team.each((planes + step - 1) / step,
              [&](std::int64_t piece, int) {
                StopPoll poll;
                for (std::int64_t i = piece * step; i < std::min((piece + 1) * step, planes) && poll.proceed(size); ++i)
                  if (by_rows)
                    run_row(i * size, size);
                  else
                    run_plane(i * size, size, i % sizes.channels, kernels);
              },
              sizes.operations());
  }

 private:
  void run_plane(std::int64_t offset, std::int64_t count, std::int64_t channel, const ChannelKernels& kernels) const noexcept {
    const ChannelGate gate = gates != nullptr ? gates->at(channel) : ChannelGate{};
    AffineArgs args;
    args.x = x + offset;
    args.a = static_cast<double>(a[channel]);
    args.b = b == nullptr ? 0 : static_cast<double>(b[channel]);
    if (g != nullptr) {
      args.g = g + offset;
      args.p = static_cast<double>(p[channel]);
    }
    args.gate = gates != nullptr ? &gate : nullptr;
    args.out = out + offset;
    args.count = count;
    args.low = low;
    args.high = high;
    kernels.affine(args);
  }

  // One number of each channel.
  void run_row(std::int64_t offset, std::int64_t channels) const noexcept {
    const T least = static_cast<T>(low), most = static_cast<T>(high);
    for (std::int64_t c = 0; c < channels; ++c) {
      T value = a[c] * x[offset + c];
      if (b != nullptr) value += b[c];
      if (g != nullptr) value += p[c] * g[offset + c];
      out[offset + c] = value < least ? least : value > most ? most : value;
    }
  }
};

// Operands x, a, b, g and p; with a gate, the moments, the scale and the bias of its normalisation.
template <class T>
class ChannelAffineStep final : public SharedStep {
 public:
  explicit ChannelAffineStep(const StepRequest& request)
      : sizes_(request.result.shape),
        kernels_(*request.table.channels[sizeof(T) / 8]),
        has_bias_(request.inputs.size() > 2 && !request.inputs[2].absent),
        has_second_(request.inputs.size() == 5) {}
  ChannelAffineStep(const Dims& shape, const Table& table, const std::optional<NormalGate>& gate)
      : sizes_(shape), kernels_(*table.channels[sizeof(T) / 8]), has_bias_(true), has_second_(true), gate_(gate) {
    scratch_bytes_ = Gates<T>::scratch_bytes(sizes_.channels);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(inputs[i]); };
    Affine<T> affine{at(0),
                     at(1),
                     has_bias_ ? at(2) : nullptr,
                     has_second_ ? at(3) : nullptr,
                     has_second_ ? at(4) : nullptr,
                     reinterpret_cast<T*>(output)};
    std::optional<Gates<T>> gates;
    if (gate_) affine.gates = &gates.emplace(*gate_, inputs + 5, sizes_.channels, scratch);
    affine.run(sizes_, kernels_, team);
  }
  std::string_view algorithm() const noexcept override { return gate_ ? "gated" : ""; }

 private:
  Sizes sizes_;
  const ChannelKernels& kernels_;
  bool has_bias_, has_second_;
  std::optional<NormalGate> gate_;
};

template <class T>
class ChannelNormalizeStep final : public SharedStep {
 public:
  explicit ChannelNormalizeStep(const StepRequest& request)
      : sizes_(request.result.shape),
        kernels_(*request.table.channels[sizeof(T) / 8]),
        epsilon_(request.attributes.get_float("epsilon", 1e-5)),
        has_bounds_(request.attributes.has("low") || request.attributes.has("high")),
        low_(request.attributes.get_float("low", -std::numeric_limits<double>::infinity())),
        high_(request.attributes.get_float("high", std::numeric_limits<double>::infinity())) {
    scratch_bytes_ = 2 * static_cast<std::size_t>(sizes_.channels) * sizeof(T);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(inputs[i]); };
    T *a = reinterpret_cast<T*>(scratch), *b = a + sizes_.channels;
    find_normal_factors(at(1), at(2), at(3), sizes_.channels, epsilon_, a, b);
    const Affine<T> affine{at(0), a, b, nullptr, nullptr, reinterpret_cast<T*>(output), nullptr, low_, high_};
    affine.run(sizes_, kernels_, team);
  }
  std::string_view algorithm() const noexcept override { return has_bounds_ ? "with bounds" : ""; }

 private:
  Sizes sizes_;
  const ChannelKernels& kernels_;
  double epsilon_;
  bool has_bounds_;
  double low_, high_;
};

// Return the shape of the operand, which has channels, and check that all operands have its type.
Dims shape_of(const char* op, std::span<const Operand> operands) {
  const Operand& x = operands[0];
  if (x.dtype != DType::f32 && x.dtype != DType::f64)
    throw Error(ErrorKind::dtype, std::string(op) + " does not support " + std::string(dtype_name(x.dtype)));
  for (const Operand& operand : operands)
    if (!operand.absent && operand.dtype != x.dtype)
      throw Error(ErrorKind::dtype, std::string(op) + " of " + std::string(dtype_name(x.dtype)) + " and " +
                                        std::string(dtype_name(operand.dtype)) + "; its operands have one dtype");
  if (x.shape.size() < 2)
    throw Error(ErrorKind::shape, std::string(op) + " of shape " + to_string(x.shape) + "; it needs (batch, channels, ...)");
  return x.shape;
}

void check_shape(const char* op, const Operand& operand, const Dims& expected) {
  if (!operand.absent && operand.shape != expected)
    throw Error(ErrorKind::shape,
                std::string(op) + " takes an operand of shape " + to_string(expected) + ", not " + to_string(operand.shape));
}

template <template <class> class Step>
std::unique_ptr<HostStep> make(const StepRequest& request) {
  if (request.result.dtype == DType::f64) return std::make_unique<Step<double>>(request);
  return std::make_unique<Step<float>>(request);
}

}  // namespace

// x (batch, channels, ...) -> (2, channels): mean and variance (of the population).
TensorType infer_channel_moments(std::span<const Operand> operands, const Attributes&) {
  return {operands[0].dtype, {2, shape_of("ChannelMoments", operands)[1]}};
}

// g and x (batch, channels, ...), centre (channels) -> (2, channels): sums of g and of g * (x - centre).
TensorType infer_channel_sums(std::span<const Operand> operands, const Attributes&) {
  const Dims shape = shape_of("ChannelSums", operands);
  check_shape("ChannelSums", operands[1], shape);
  check_shape("ChannelSums", operands[2], {shape[1]});
  return {operands[0].dtype, {2, shape[1]}};
}

// x (batch, channels, ...), a and b (channels) -> a * x + b, in the shape of x; with g in that shape and p (channels), + p * g.
// b may be absent.
TensorType infer_channel_affine(std::span<const Operand> operands, const Attributes&) {
  const Dims shape = shape_of("ChannelAffine", operands);
  const auto has = [&](std::size_t i) { return i < operands.size() && !operands[i].absent; };
  if (has(3) != has(4) || (operands.size() > 3 && !has(3)))
    throw Error(ErrorKind::model, "ChannelAffine takes a second operand with its factors, or neither");
  for (const std::size_t i : {1, 2, 4})
    if (i < operands.size()) check_shape("ChannelAffine", operands[i], {shape[1]});
  if (operands.size() == 5) check_shape("ChannelAffine", operands[3], shape);
  return {operands[0].dtype, shape};
}

// x (batch, channels, ...), its ChannelMoments (2, channels), scale and bias (channels)
// -> (x - mean) / sqrt(variance + epsilon) * scale + bias, in the shape of x; limited to low and high where plan/fuse.cpp found
// these bounds behind it, after the gradients.
TensorType infer_channel_normalize(std::span<const Operand> operands, const Attributes&) {
  const Dims shape = shape_of("ChannelNormalize", operands);
  check_shape("ChannelNormalize", operands[1], {2, shape[1]});
  for (const std::size_t i : {2, 3}) check_shape("ChannelNormalize", operands[i], {shape[1]});
  return {operands[0].dtype, shape};
}

std::unique_ptr<HostStep> make_channel_moments(const StepRequest& request) { return make<ChannelMomentsStep>(request); }
std::unique_ptr<HostStep> make_channel_sums(const StepRequest& request) { return make<ChannelSumsStep>(request); }
std::unique_ptr<HostStep> make_channel_affine(const StepRequest& request) { return make<ChannelAffineStep>(request); }
std::unique_ptr<HostStep> make_channel_normalize(const StepRequest& request) { return make<ChannelNormalizeStep>(request); }

std::unique_ptr<HostStep> make_gated_sums(const TensorType& x, const NormalGate& gate, const Table& table) {
  if (x.dtype == DType::f64) return std::make_unique<ChannelSumsStep<double>>(x.shape, table, gate);
  return std::make_unique<ChannelSumsStep<float>>(x.shape, table, gate);
}
std::unique_ptr<HostStep> make_gated_affine(const TensorType& x, const NormalGate& gate, const Table& table) {
  if (x.dtype == DType::f64) return std::make_unique<ChannelAffineStep<double>>(x.shape, table, gate);
  return std::make_unique<ChannelAffineStep<float>>(x.shape, table, gate);
}

}  // namespace walle

// Operators by channel, axis 1 of (batch, channels, ...), for normalisation by batch in training and its gradients (§4.2):
// statistics of each channel in one pass over memory, and what they are used for in another. float32 and float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "atomic/atomic.h"
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

template <class T>
class ChannelSumsStep final : public SharedStep {
 public:
  explicit ChannelSumsStep(const StepRequest& request)
      : sizes_(request.inputs[0].shape), kernel_(request.table.channels[sizeof(T) / 8]->sums) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto *g = reinterpret_cast<const T*>(inputs[0]), *x = reinterpret_cast<const T*>(inputs[1]),
               *centre = reinterpret_cast<const T*>(inputs[2]);
    auto* out = reinterpret_cast<T*>(output);
    each_channels(sizes_, team, [&](std::int64_t first, std::int64_t last) {
      StopPoll poll;
      if (sizes_.plane == 1) {
        of_columns(g, x, centre, out, first, last, poll);
        return;
      }
      for (std::int64_t channel = first; channel < last; ++channel) {
        double sum = 0, product = 0;
        each_block(sizes_, channel, poll, [&](std::int64_t offset, const ChannelRows& rows) {
          double block[2];
          kernel_(g + offset, x + offset, static_cast<double>(centre[channel]), rows, block);
          sum += block[0];
          product += block[1];
        });
        out[channel] = static_cast<T>(sum);
        out[sizes_.channels + channel] = static_cast<T>(product);
      }
    });
  }

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
};

// Numbers to which results are limited while they are in cache; absent ones limit nothing.
template <class T>
class Bounds {
 public:
  Bounds(const Attributes& attributes, const Table& table)
      : has_low_(attributes.has("low")),
        has_high_(attributes.has("high")),
        low_(static_cast<T>(attributes.get_float("low", 0))),
        high_(static_cast<T>(attributes.get_float("high", 0))),
        maximum_(table.binary[static_cast<std::size_t>(BinaryOp::Maximum)][sizeof(T) / 8]),
        minimum_(table.binary[static_cast<std::size_t>(BinaryOp::Minimum)][sizeof(T) / 8]) {}

  bool any() const noexcept { return has_low_ || has_high_; }
  void apply(T* values, std::int64_t count) const noexcept {
    if (has_low_) maximum_(values, 1, &low_, 0, values, count);
    if (has_high_) minimum_(values, 1, &high_, 0, values, count);
  }

 private:
  bool has_low_, has_high_;
  T low_, high_;
  BinaryFn maximum_, minimum_;
};

// Computes a * x + b + p * g with numbers a, b and p for each channel. b may be null, g with p, and bounds.
template <class T>
struct Affine {
  const T *x, *a, *b, *g, *p;
  T* out;
  const Bounds<T>* bounds = nullptr;

  void run(const Sizes& sizes, const ChannelKernels& kernels, Team& team) const noexcept {
    const std::int64_t planes = sizes.plane == 1 ? sizes.batch : sizes.batch * sizes.channels;
    const std::int64_t size = sizes.plane == 1 ? sizes.channels : sizes.plane;
    const std::int64_t step = std::max<std::int64_t>(kPieceElements / std::max<std::int64_t>(size, 1), 1);
    team.each((planes + step - 1) / step,
              [&](std::int64_t piece, int) {
                StopPoll poll;
                for (std::int64_t i = piece * step; i < std::min((piece + 1) * step, planes) && poll.proceed(size); ++i)
                  if (sizes.plane == 1)
                    run_row(i * size, size);
                  else
                    for (std::int64_t first = 0; first < size; first += kChannelBlock)
                      run_block(i * size + first, std::min(kChannelBlock, size - first), i % sizes.channels, kernels);
              },
              sizes.operations());
  }

 private:
  void run_block(std::int64_t offset, std::int64_t count, std::int64_t channel, const ChannelKernels& kernels) const noexcept {
    AffineArgs args;
    args.x = x + offset;
    args.a = static_cast<double>(a[channel]);
    args.b = b == nullptr ? 0 : static_cast<double>(b[channel]);
    if (g != nullptr) {
      args.g = g + offset;
      args.p = static_cast<double>(p[channel]);
    }
    args.out = out + offset;
    args.count = count;
    kernels.affine(args);
    if (bounds != nullptr) bounds->apply(out + offset, count);
  }

  // One number of each channel.
  void run_row(std::int64_t offset, std::int64_t channels) const noexcept {
    for (std::int64_t c = 0; c < channels; ++c) {
      T value = a[c] * x[offset + c];
      if (b != nullptr) value += b[c];
      if (g != nullptr) value += p[c] * g[offset + c];
      out[offset + c] = value;
    }
    if (bounds != nullptr) bounds->apply(out + offset, channels);
  }
};

template <class T>
class ChannelAffineStep final : public SharedStep {
 public:
  explicit ChannelAffineStep(const StepRequest& request)
      : sizes_(request.result.shape),
        kernels_(*request.table.channels[sizeof(T) / 8]),
        has_bias_(request.inputs.size() > 2 && !request.inputs[2].absent),
        has_second_(request.inputs.size() == 5) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(inputs[i]); };
    const Affine<T> affine{at(0),
                           at(1),
                           has_bias_ ? at(2) : nullptr,
                           has_second_ ? at(3) : nullptr,
                           has_second_ ? at(4) : nullptr,
                           reinterpret_cast<T*>(output)};
    affine.run(sizes_, kernels_, team);
  }

 private:
  Sizes sizes_;
  const ChannelKernels& kernels_;
  bool has_bias_, has_second_;
};

template <class T>
class ChannelNormalizeStep final : public SharedStep {
 public:
  explicit ChannelNormalizeStep(const StepRequest& request)
      : sizes_(request.result.shape),
        kernels_(*request.table.channels[sizeof(T) / 8]),
        epsilon_(request.attributes.get_float("epsilon", 1e-5)),
        bounds_(request.attributes, request.table) {
    scratch_bytes_ = 2 * static_cast<std::size_t>(sizes_.channels) * sizeof(T);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(inputs[i]); };
    const T *mean = at(1), *variance = mean + sizes_.channels, *scale = at(2), *bias = at(3);
    T *a = reinterpret_cast<T*>(scratch), *b = a + sizes_.channels;
    for (std::int64_t c = 0; c < sizes_.channels; ++c) {
      const double factor = static_cast<double>(scale[c]) / std::sqrt(static_cast<double>(variance[c]) + epsilon_);
      a[c] = static_cast<T>(factor);
      b[c] = static_cast<T>(static_cast<double>(bias[c]) - static_cast<double>(mean[c]) * factor);
    }
    const Affine<T> affine{at(0), a, b, nullptr, nullptr, reinterpret_cast<T*>(output), bounds_.any() ? &bounds_ : nullptr};
    affine.run(sizes_, kernels_, team);
  }
  std::string_view algorithm() const noexcept override { return bounds_.any() ? "with bounds" : ""; }

 private:
  Sizes sizes_;
  const ChannelKernels& kernels_;
  double epsilon_;
  Bounds<T> bounds_;
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

}  // namespace walle

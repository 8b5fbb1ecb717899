// Pooling: PoolMax, PoolSum and PoolMean by the elementwise kernels, row by row (PoolMax of float32 by channels, lane_pooling.h);
// PoolArgMax by plain loops.
// MaxPool and LpPool are composites of these.
#include <cstring>
#include <limits>

#include "atomic/conversion.h"
#include "atomic/lane_pooling.h"
#include "atomic/lane_rows.h"
#include "atomic/packed_pooling.h"
#include "core/stop.h"

namespace walle {

namespace {

Window window_of(const char* op, const Dims& x, const Attributes& attributes) {
  if (x.size() < 3)
    throw Error(ErrorKind::shape,
                std::string(op) + " of " + to_string(x) + "; batch, channels and at least one more dimension are needed");
  const auto kernel = attributes.get_ints("kernel_shape");
  if (!kernel) throw Error(ErrorKind::model, std::string(op) + " needs the attribute 'kernel_shape'");
  return Window::make(op, std::span(x).subspan(2), *kernel, attributes);
}

Dims pooled_dims(const Dims& x, const Window& window) {
  Dims result{x[0], x[1]};
  for (const std::int64_t dim : window.out_dims()) result.push_back(dim);
  return result;
}

template <class F>
void with_pooled_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i8: return f(std::int8_t{});
    case DType::i16: return f(std::int16_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::i64: return f(std::int64_t{});
    case DType::u8: return f(std::uint8_t{});
    case DType::u16: return f(std::uint16_t{});
    case DType::u32: return f(std::uint32_t{});
    case DType::u64: return f(std::uint64_t{});
    default: throw Error(ErrorKind::dtype, std::string(op) + " takes no " + std::string(dtype_name(dtype)));
  }
}

// out = join over the taps that lie inside, starting from `identity`; then, for a mean, divided by the number of taps that count.
class JoinStep final : public HostStep {
 public:
  JoinStep(const StepRequest& request, const char* op, BinaryOp join, bool mean)
      : window_(window_of(op, request.inputs[0].shape, request.attributes)),
        planes_(request.inputs[0].shape[0] * request.inputs[0].shape[1]),
        item_(static_cast<std::int64_t>(item_size(request.result.dtype))) {
    const auto type = static_cast<std::size_t>(compute_index(request.result.dtype));
    join_ = request.table.binary[static_cast<std::size_t>(join)][type];
    fill_ = request.table.cast[type][type];
    const bool greatest = join == BinaryOp::Maximum;
    with_pooled_type(request.result.dtype, op, [&]<class T>(T) {
      const T value = !greatest                              ? T{0}
                      : std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                             : std::numeric_limits<T>::lowest();
      std::memcpy(identity_, &value, sizeof(T));
      if (mean) count_taps<T>(request.attributes.get_int("count_include_pad", 0) != 0);
    });
    if (mean) divide_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Div)][type];
    in_blocks_ = join == BinaryOp::Add && is_floating(request.result.dtype) && window_.taps() > kBlock;
    if (!in_blocks_ || window_.out[2] == 0) return;
    for (std::int64_t kx = window_.taps_of(2, window_.out[2] - 1).first; kx < window_.taps_of(2, 0).second; ++kx) {
      const auto [first, last] = window_.valid(2, kx);
      if (first < last) row_taps_.push_back({first, last, window_.source(2, first, kx)});
    }
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::byte* in = inputs[0];
    const std::int64_t from_plane = window_.in_count() * item_, to_plane = window_.out_count() * item_;
    StopPoll poll;
    for (std::int64_t p = 0; p < planes_; ++p, in += from_plane, output += to_plane) {
      if (!join_plane(in, output, poll)) return;
      if (divide_ != nullptr) divide_(output, 1, counts_.raw(), 1, output, window_.out_count());
    }
  }

 private:
  // Returns false where it was stopped.
  bool join_plane(const std::byte* in, std::byte* out, StopPoll& poll) const noexcept {
    const Window& win = window_;
    if (win.out[2] == 0) return true;
    // Of a row, the first output meets the last taps and the last output the first: no others meet any.
    const std::int64_t first_x = win.taps_of(2, win.out[2] - 1).first, last_x = win.taps_of(2, 0).second;
    for (std::int64_t z = 0; z < win.out[0]; ++z)
      for (std::int64_t y = 0; y < win.out[1]; ++y, out += win.out[2] * item_) {
        if (!in_blocks_) fill_(identity_, 0, out, win.out[2]);
        const auto [first_z, last_z] = win.taps_of(0, z);
        const auto [first_y, last_y] = win.taps_of(1, y);
        if (!poll.proceed(win.out[2] * (last_z - first_z) * (last_y - first_y) * win.kernel[2])) return false;
        if (in_blocks_) {
          sum_in_blocks(in, out, {first_z, first_y}, {last_z, last_y}, {z, y});
          continue;
        }
        for (std::int64_t kz = first_z; kz < last_z; ++kz) {
          const std::int64_t depth = win.source(0, z, kz);
          for (std::int64_t ky = first_y; ky < last_y; ++ky) {
            const std::int64_t row = win.source(1, y, ky);
            for (std::int64_t kx = first_x; kx < last_x; ++kx) {
              const auto [first, last] = win.valid(2, kx);
              std::byte* to = out + first * item_;
              join_(to, 1, in + ((depth * win.in[1] + row) * win.in[2] + win.source(2, first, kx)) * item_, win.stride[2], to,
                    last - first);
            }
          }
        }
      }
    return true;
  }

  // Sums the taps of a row of outputs in blocks: errors grow with a block, not with all taps of a large window.
  void sum_in_blocks(const std::byte* in, std::byte* out, const std::array<std::int64_t, 2>& first_tap,
                     const std::array<std::int64_t, 2>& last_tap, const std::array<std::int64_t, 2>& at) const noexcept {
    const Window& win = window_;
    constexpr std::int64_t kBytes = 1 << 12;
    alignas(64) std::byte part[kBytes];
    for (std::int64_t done = 0; done < win.out[2]; done += kBytes / item_) {
      const std::int64_t end = std::min(done + kBytes / item_, win.out[2]);
      std::byte* to = out + done * item_;
      fill_(identity_, 0, to, end - done);
      fill_(identity_, 0, part, end - done);
      std::int64_t taps = 0;
      for (std::int64_t kz = first_tap[0]; kz < last_tap[0]; ++kz)
        for (std::int64_t ky = first_tap[1]; ky < last_tap[1]; ++ky) {
          const std::int64_t row = win.source(0, at[0], kz) * win.in[1] + win.source(1, at[1], ky);
          const std::byte* from = in + row * win.in[2] * item_;
          for (const RowTap& tap : row_taps_) {
            if (taps++ == kBlock) {
              join_(to, 1, part, 1, to, end - done);
              fill_(identity_, 0, part, end - done);
              taps = 1;
            }
            const std::int64_t first = std::max(tap.first, done), last = std::min(tap.last, end);
            if (first >= last) continue;
            std::byte* sums = part + (first - done) * item_;
            join_(sums, 1, from + (tap.source + (first - tap.first) * win.stride[2]) * item_, win.stride[2], sums, last - first);
          }
        }
      join_(to, 1, part, 1, to, end - done);
    }
  }

  // How many taps each output counts: those inside the input, or (pads included) inside the padded input.
  template <class T>
  void count_taps(bool pads) {
    std::array<Dims, Window::kAxes> along;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis)
      for (std::int64_t o = 0; o < window_.out[axis]; ++o) {
        const auto [first, last] = pads ? window_.taps_in(axis, o, -window_.begin[axis], window_.in[axis] + window_.end[axis])
                                        : window_.taps_of(axis, o);
        along[axis].push_back(last - first);
      }
    if constexpr (std::is_floating_point_v<T>) {
      counts_ = Tensor::empty(std::is_same_v<T, float> ? DType::f32 : DType::f64, {window_.out_count()});
      T* to = counts_.data<T>();
      for (const std::int64_t z : along[0])
        for (const std::int64_t y : along[1])
          for (const std::int64_t x : along[2]) *to++ = static_cast<T>(z * y * x);
    }
  }

  static constexpr std::int64_t kBlock = 64;  // taps of a partial sum
  Window window_;
  std::int64_t planes_, item_;
  bool in_blocks_ = false;
  // A tap along the last axis that meets outputs [first, last); the first one reads element `source`.
  struct RowTap {
    std::int64_t first, last, source;
  };
  std::vector<RowTap> row_taps_;
  BinaryFn join_ = nullptr, divide_ = nullptr;
  UnaryFn fill_ = nullptr;
  Tensor counts_;
  alignas(8) std::byte identity_[8]{};
};

// The same over packed channels.
class PackedPoolStep final : public SharedStep {
 public:
  PackedPoolStep(const Window& window, std::int64_t planes, PackedPool kind, const Table& table)
      : rows_(window, table.pack), planes_(planes), kernel_(kind == PackedPool::max ? table.pool_max : table.pool_sum) {
    constexpr double kSlower = 4;  // a tile kernel's operation needs fewer loads
    operations_ = kSlower * static_cast<double>(planes * table.pack) * static_cast<double>(window.out_count() * window.taps());
    scales_.reserve(rows_.rows().size());
    for (const LaneRows::Row& row : rows_.rows()) {
      const auto taps = static_cast<float>(kind == PackedPool::mean ? static_cast<std::int64_t>(row.tap_count) : row.counted);
      scales_.push_back(kind == PackedPool::mean || kind == PackedPool::mean_with_pads ? 1.0f / taps : 1.0f);
    }
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    team.each(
        planes_,
        [&](std::int64_t plane, int) {
          for (std::size_t i = 0; i < scales_.size(); ++i) {
            LaneArgs args = rows_.args(rows_.rows()[i], reinterpret_cast<const float*>(inputs[0]) + plane * rows_.in_plane(),
                                       reinterpret_cast<float*>(output) + plane * rows_.out_plane());
            args.w = &scales_[i];
            kernel_(args);
          }
        },
        operations_);
  }

 private:
  LaneRows rows_;
  std::int64_t planes_;
  LaneFn kernel_;
  double operations_ = 0;
  std::vector<float> scales_;
};

// The place of the first greatest element of each window in the whole input, counted row-major, or column-major within its plane
// where storage_order is 1. -1 where a window has no element.
template <class T>
class ArgMaxStep final : public HostStep {
 public:
  explicit ArgMaxStep(const StepRequest& request)
      : window_(window_of("MaxPool", request.inputs[0].shape, request.attributes)),
        planes_(request.inputs[0].shape[0] * request.inputs[0].shape[1]),
        columns_first_(request.attributes.get_int("storage_order", 0) != 0) {
    for (std::int64_t x = 0; x < window_.out[2]; ++x) row_taps_.push_back(window_.taps_of(2, x));
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const Window& win = window_;
    const T* in = reinterpret_cast<const T*>(inputs[0]);
    auto* out = reinterpret_cast<std::int64_t*>(output);
    StopPoll poll;
    for (std::int64_t p = 0; p < planes_; ++p, in += win.in_count())
      for (std::int64_t z = 0; z < win.out[0]; ++z)
        for (std::int64_t y = 0; y < win.out[1]; ++y) {
          if (!poll.proceed(win.out[2] * win.taps())) return;
          const Taps along_z = win.taps_of(0, z), along_y = win.taps_of(1, y);
          for (std::int64_t x = 0; x < win.out[2]; ++x) {
            const std::int64_t place = best(in, along_z, along_y, row_taps_[static_cast<std::size_t>(x)], z, y, x);
            *out++ = place < 0 ? -1 : p * win.in_count() + (columns_first_ ? by_columns(place) : place);
          }
        }
  }

 private:
  using Taps = std::pair<std::int64_t, std::int64_t>;

  std::int64_t best(const T* in, Taps along_z, Taps along_y, Taps along_x, std::int64_t z, std::int64_t y,
                    std::int64_t x) const noexcept {
    const Window& win = window_;
    std::int64_t place = -1;
    T greatest{};
    for (std::int64_t kz = along_z.first; kz < along_z.second; ++kz)
      for (std::int64_t ky = along_y.first; ky < along_y.second; ++ky) {
        std::int64_t at = (win.source(0, z, kz) * win.in[1] + win.source(1, y, ky)) * win.in[2] + win.source(2, x, along_x.first);
        for (std::int64_t kx = along_x.first; kx < along_x.second; ++kx, at += win.dilation[2]) {
          if (place >= 0 && !(in[at] > greatest)) continue;
          place = at;
          greatest = in[at];
        }
      }
    return place;
  }
  // Return a place of a plane, counted row-major, column-major.
  std::int64_t by_columns(std::int64_t place) const noexcept {
    const Window& win = window_;
    const std::int64_t w = place % win.in[2], h = place / win.in[2] % win.in[1], d = place / win.in[2] / win.in[1];
    return (w * win.in[1] + h) * win.in[0] + d;
  }

  Window window_;
  std::int64_t planes_;
  bool columns_first_;
  std::vector<Taps> row_taps_;  // taps of each output of a row
};

// 16-bit floats are computed in float32.
TensorType infer_pool(const char* op, std::span<const Operand> operands, const Attributes& attributes, bool floating) {
  const DType dtype = is_half(operands[0].dtype) ? DType::f32 : operands[0].dtype;
  if (floating && dtype != DType::f32 && dtype != DType::f64)
    throw Error(ErrorKind::dtype, std::string(op) + " takes no " + std::string(dtype_name(operands[0].dtype)));
  with_pooled_type(dtype, op, [](auto) {});
  return {operands[0].dtype, pooled_dims(operands[0].shape, window_of(op, operands[0].shape, attributes))};
}

}  // namespace

TensorType infer_pool_max(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_pool("MaxPool", operands, attributes, false);
}
std::unique_ptr<HostStep> make_pool_max(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const Dims& x = request.inputs[0].shape;
    if (auto lanes = make_lane_pool_max(window_of("MaxPool", x, request.attributes), x, request.result.dtype, request.table))
      return lanes;
    return std::make_unique<JoinStep>(request, "MaxPool", BinaryOp::Maximum, false);
  });
}

TensorType infer_pool_sum(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_pool("LpPool", operands, attributes, true);
}
std::unique_ptr<HostStep> make_pool_sum(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    return std::make_unique<JoinStep>(request, "LpPool", BinaryOp::Add, false);
  });
}

TensorType infer_pool_mean(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_pool("AveragePool", operands, attributes, true);
}
std::unique_ptr<HostStep> make_pool_mean(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    return std::make_unique<JoinStep>(request, "AveragePool", BinaryOp::Add, true);
  });
}

std::unique_ptr<HostStep> make_packed_pool(std::string_view op, const Dims& x, const Attributes& attributes, const Table& table) {
  const Window window = window_of("Pool", x, attributes);
  const std::int64_t blocks = (x[1] + table.pack - 1) / table.pack;
  const PackedPool kind = op == "PoolMax"                                   ? PackedPool::max
                          : op == "PoolSum"                                 ? PackedPool::sum
                          : attributes.get_int("count_include_pad", 0) != 0 ? PackedPool::mean_with_pads
                                                                            : PackedPool::mean;
  return std::make_unique<PackedPoolStep>(window, x[0] * blocks, kind, table);
}

TensorType infer_pool_arg_max(std::span<const Operand> operands, const Attributes& attributes) {
  return {DType::i64, infer_pool("MaxPool", operands, attributes, false).shape};
}
std::unique_ptr<HostStep> make_pool_arg_max(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) {
    std::unique_ptr<HostStep> step;
    with_pooled_type(request.inputs[0].dtype, "MaxPool", [&]<class T>(T) { step = std::make_unique<ArgMaxStep<T>>(request); });
    return step;
  });
}

}  // namespace walle

// IndexedGather and IndexedScatter: the indexed raster as atomic operators. What Gather and Scatter become where their indices
// are known only at run time.
#include "geometry/indexed_raster.h"

#include <cstring>
#include <type_traits>

#include "atomic/atomic.h"

namespace walle {

namespace {

constexpr const char* kOutOfRange = "an index is out of range";

std::int64_t count_of(const Layout& layout) { return element_count(layout.shape); }

class GatherStep final : public HostStep {
 public:
  explicit GatherStep(const StepRequest& request)
      : raster_(IndexedMovement::from(request.attributes), count_of(request.inputs[0]), element_count(request.result.shape),
                count_of(request.inputs[1]), true),
        item_(item_size(request.result.dtype)),
        wide_(request.inputs[1].dtype == DType::i64) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const bool sound = wide_ ? raster_.gather(reinterpret_cast<const std::int64_t*>(inputs[1]), inputs[0], output, item_)
                             : raster_.gather(reinterpret_cast<const std::int32_t*>(inputs[1]), inputs[0], output, item_);
    if (!sound) fail(kOutOfRange);
  }

 private:
  IndexedRaster raster_;
  std::size_t item_;
  bool wide_;
};

// Sums of single elements, as a histogram makes them, without a call for each.
template <class T>
bool add_elements(const IndexedRaster& raster, const std::int64_t* indices, const std::byte* from, std::byte* to) noexcept {
  const T* updates = reinterpret_cast<const T*>(from);
  T* sums = reinterpret_cast<T*>(to);
  return raster.walk(indices, [&](const Region&, std::int64_t indexed, std::int64_t plain) {
    if constexpr (std::is_integral_v<T>)
      sums[indexed] = static_cast<T>(static_cast<std::uint64_t>(sums[indexed]) + static_cast<std::uint64_t>(updates[plain]));
    else
      sums[indexed] += updates[plain];
  });
}

// Copies the data, then writes (or joins) the updates one after the other.
class ScatterStep final : public HostStep {
 public:
  explicit ScatterStep(const StepRequest& request)
      : raster_(IndexedMovement::from(request.attributes), element_count(request.result.shape), count_of(request.inputs[2]),
                count_of(request.inputs[1]), false),
        item_(item_size(request.result.dtype)),
        bytes_(static_cast<std::size_t>(element_count(request.result.shape)) * item_),
        wide_(request.inputs[1].dtype == DType::i64) {
    const std::string reduction = request.attributes.get_string("reduction", "none");
    if (reduction == "none") return;
    const BinaryOp op = reduction == "add"   ? BinaryOp::Add
                        : reduction == "mul" ? BinaryOp::Mul
                        : reduction == "max" ? BinaryOp::Maximum
                        : reduction == "min" ? BinaryOp::Minimum
                                             : BinaryOp::kCount;
    if (op == BinaryOp::kCount)
      throw Error(ErrorKind::unsupported, "reduction '" + reduction + "'; known are none, add, mul, max, min");
    const int type = compute_index(request.result.dtype);
    if (type >= 0) join_ = request.table.binary[static_cast<std::size_t>(op)][static_cast<std::size_t>(type)];
    if (op == BinaryOp::Add && raster_.by_elements()) {
      const DType dtype = request.result.dtype;
      sums_ = dtype == DType::f32   ? &add_elements<float>
              : dtype == DType::f64 ? &add_elements<double>
              : dtype == DType::i64 ? &add_elements<std::int64_t>
                                    : nullptr;
    }
    if (join_ == nullptr)
      throw Error(ErrorKind::dtype,
                  "reduction '" + reduction + "' does not support " + std::string(dtype_name(request.result.dtype)));
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    StopPoll poll;
    const bool copied = run_in_blocks(static_cast<std::int64_t>(bytes_), 1, poll, [&](std::int64_t first, std::int64_t last) {
      std::memcpy(output + first, inputs[0] + first, static_cast<std::size_t>(last - first));
    });
    if (!copied) return;
    if (join_ == nullptr) {
      const bool written = wide_ ? raster_.scatter(reinterpret_cast<const std::int64_t*>(inputs[1]), inputs[2], output, item_)
                                 : raster_.scatter(reinterpret_cast<const std::int32_t*>(inputs[1]), inputs[2], output, item_);
      if (!written) fail(kOutOfRange);
      return;
    }
    if (sums_ != nullptr && wide_) {
      if (!sums_(raster_, reinterpret_cast<const std::int64_t*>(inputs[1]), inputs[2], output)) fail(kOutOfRange);
      return;
    }
    const auto item = static_cast<std::int64_t>(item_);
    const auto move = [&](const Region& region, std::int64_t indexed, std::int64_t plain) {
      const std::byte* from = inputs[2] + plain * item;
      std::byte* to = output + indexed * item;
      join_region(region, from, to);
    };
    const bool sound = wide_ ? raster_.walk(reinterpret_cast<const std::int64_t*>(inputs[1]), move)
                             : raster_.walk(reinterpret_cast<const std::int32_t*>(inputs[1]), move);
    if (!sound) fail(kOutOfRange);
  }

 private:
  void join_region(const Region& region, const std::byte* from, std::byte* to) const noexcept {
    const auto item = static_cast<std::int64_t>(item_);
    from += region.src.offset * item;
    to += region.dst.offset * item;
    std::array<std::int64_t, kMaxAxes> at{};
    const auto axes = static_cast<std::size_t>(region.axes);
    const bool rows = axes > 0 && region.dst.stride[axes - 1] == 1;  // a kernel's output is contiguous
    for (;;) {
      join_(to, 1, from, rows ? region.src.stride[axes - 1] : 1, to, rows ? region.size[axes - 1] : 1);
      std::size_t axis = rows ? axes - 1 : axes;
      for (;;) {
        if (axis == 0) return;
        --axis;
        from += region.src.stride[axis] * item;
        to += region.dst.stride[axis] * item;
        if (++at[axis] < region.size[axis]) break;
        from -= region.size[axis] * region.src.stride[axis] * item;
        to -= region.size[axis] * region.dst.stride[axis] * item;
        at[axis] = 0;
      }
    }
  }

  IndexedRaster raster_;
  std::size_t item_, bytes_;
  BinaryFn join_ = nullptr;
  bool (*sums_)(const IndexedRaster&, const std::int64_t*, const std::byte*, std::byte*) noexcept = nullptr;
  bool wide_;
};

void check_indices(std::span<const Operand> operands) {
  if (operands[1].absent || (operands[1].dtype != DType::i64 && operands[1].dtype != DType::i32))
    throw Error(ErrorKind::dtype, "indices must be int64 or int32, not " + std::string(dtype_name(operands[1].dtype)));
}

}  // namespace

TensorType infer_indexed_gather(std::span<const Operand> operands, const Attributes& attributes) {
  check_indices(operands);
  const auto shape = attributes.get_ints("shape");
  if (!shape) throw Error(ErrorKind::model, "an indexed raster needs the attribute 'shape'");
  const IndexedMovement movement = IndexedMovement::from(attributes);
  if (element_count(*shape) != element_count(movement.size) || !movement.fills_plain())
    throw Error(ErrorKind::model, "an indexed gather must fill its result");
  return {operands[0].dtype, *shape};
}

std::unique_ptr<HostStep> make_indexed_gather(const StepRequest& request) { return std::make_unique<GatherStep>(request); }

TensorType infer_indexed_scatter(std::span<const Operand> operands, const Attributes&) {
  check_indices(operands);
  if (operands[2].absent || operands[2].dtype != operands[0].dtype)
    throw Error(ErrorKind::dtype, "updates are " + std::string(dtype_name(operands[2].dtype)) + ", the data " +
                                      std::string(dtype_name(operands[0].dtype)));
  return {operands[0].dtype, operands[0].shape};
}

std::unique_ptr<HostStep> make_indexed_scatter(const StepRequest& request) { return std::make_unique<ScatterStep>(request); }

}  // namespace walle

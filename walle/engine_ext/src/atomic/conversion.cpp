#include "atomic/conversion.h"

#include <algorithm>

#include "core/stop.h"

namespace walle {

namespace {

constexpr std::int64_t kBlock = 256;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_small_integer(DType dtype) { return dtype >= DType::i4 && dtype <= DType::u2; }

std::size_t aligned(std::size_t bytes) { return (bytes / Storage::kAlignment + 1) * Storage::kAlignment; }

Layout row_major(DType dtype, const Dims& shape) {
  Layout layout;
  layout.dtype = dtype;
  layout.shape = shape;
  layout.strides = contiguous_strides(shape);
  return layout;
}

}  // namespace

Conversion::Conversion(DType from, DType to, std::size_t encoding, const Table& table)
    : from_size_(item_size(from)), to_size_(item_size(to)) {
  constexpr std::size_t kF32 = 0, kI32 = 2;
  const int stored_from = stored_index(from), stored_to = stored_index(to);
  if (stored_from < 0 && stored_to < 0) {
    add(table.cast[at(compute_index(from))][at(compute_index(to))]);
    return;
  }
  if (from == to) {
    add(table.cast[4][4]);  // one copy for all types: bytes
    return;
  }
  if (stored_from >= 0) add(table.decode[at(stored_from)]);
  if (stored_to < 0) {
    if (to != DType::f32) add(table.cast[kF32][at(compute_index(to))]);
    return;
  }
  if (is_small_integer(to))
    add(table.cast[stored_from >= 0 ? kF32 : at(compute_index(from))][kI32]);
  else if (stored_from < 0 && from != DType::f32)
    add(table.to_odd[at(compute_index(from))]);
  add(table.encode[at(stored_to)][encoding]);
}

void Conversion::run(const std::byte* in, std::int64_t stride, std::byte* out, std::int64_t count) const noexcept {
  if (count_ == 1) return stages_[0](in, stride, out, count);
  alignas(64) std::byte parts[2][kBlock * 4];  // what lies between two stages has four bytes: float32 or int32
  const auto from_size = static_cast<std::int64_t>(from_size_), to_size = static_cast<std::int64_t>(to_size_);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    stages_[0](in + begin * stride * from_size, stride, parts[0], size);
    if (count_ == 3) stages_[1](parts[0], 1, parts[1], size);
    stages_[count_ - 1](parts[count_ - 2], 1, out + begin * to_size, size);
  }
}

bool Conversion::run(const std::byte* in, std::int64_t stride, std::byte* out, std::int64_t count,
                     StopPoll& poll) const noexcept {
  const auto from_step = stride * static_cast<std::int64_t>(from_size_), to_step = static_cast<std::int64_t>(to_size_);
  return run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
    run(in + first * from_step, stride, out + first * to_step, last - first);
  });
}

std::size_t cast_encoding(DType to, const Attributes& attributes) {
  const std::size_t wraps = attributes.get_int("saturate", 1) == 0 ? 1 : 0;
  if (to != DType::f8e8m0) return wraps;
  const std::string mode = attributes.get_string("round_mode", "up");
  constexpr std::string_view modes[] = {"up", "down", "nearest"};
  const auto found = std::find(std::begin(modes), std::end(modes), mode);
  if (found == std::end(modes)) throw Error(ErrorKind::model, "round_mode '" + mode + "'; known are up, down and nearest");
  return 2 * static_cast<std::size_t>(found - std::begin(modes)) + wraps;
}

TensorType infer_cast(std::span<const Operand> operands, const Attributes& attributes) {
  const DType to = target_dtype(attributes);
  cast_encoding(to, attributes);
  return {to, operands[0].shape};
}

std::unique_ptr<HostStep> make_cast(const StepRequest& request) {
  return std::make_unique<CastStep>(request.inputs[0], request.result, cast_encoding(request.result.dtype, request.attributes),
                                    request.table);
}

CastStep::CastStep(const Layout& input, const TensorType& result, std::size_t encoding, const Table& table)
    : conversion_(input.dtype, result.dtype, encoding, table),
      nest_(LoopNest<2>::make(result.shape, {input.strides, contiguous_strides(result.shape)},
                              {item_size(input.dtype), item_size(result.dtype)})),
      stride_(nest_.row_stride(0, item_size(input.dtype))) {}

void CastStep::run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept {
  StopPoll poll;
  nest_.walk({inputs[0], output}, 1, [&](const auto& to) { return conversion_.run(to[0], stride_, to[1], nest_.row(), poll); });
}

WidenedStep::WidenedStep(std::span<const Layout> inputs, const TensorType& result, const Table& table, const Make& make)
    : inputs_(inputs.size()), count_(element_count(result.shape)) {
  std::vector<Layout> wide(inputs.begin(), inputs.end());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_half(inputs[i].dtype)) continue;
    wide[i] = row_major(DType::f32, inputs[i].shape);
    widened_.push_back({i, offset, std::make_unique<CastStep>(inputs[i], TensorType{DType::f32, inputs[i].shape}, 0, table)});
    offset += aligned(static_cast<std::size_t>(element_count(inputs[i].shape)) * sizeof(float));
  }
  const bool narrows = is_half(result.dtype);
  inner_ = make(wide, {narrows ? DType::f32 : result.dtype, result.shape});
  if (narrows) {
    narrow_.emplace(DType::f32, result.dtype, 0, table);
    result_offset_ = offset;
    offset += aligned(static_cast<std::size_t>(count_) * sizeof(float));
  }
  inner_offset_ = offset;
  scratch_bytes_ = offset + inner_->scratch_bytes();
}

void WidenedStep::run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept {
  constexpr std::size_t kMaxInputs = 16;
  std::array<std::byte*, kMaxInputs> addresses;
  std::copy_n(inputs, inputs_, addresses.begin());
  for (const Widened& one : widened_) {
    addresses[one.input] = scratch + one.offset;
    one.cast->run(inputs + one.input, addresses[one.input], nullptr);
  }
  std::byte* result = narrow_ ? scratch + result_offset_ : output;
  inner_->run(addresses.data(), result, scratch + inner_offset_);
  StopPoll poll;
  if (narrow_) narrow_->run(result, 1, output, count_, poll);
}

std::unique_ptr<HostStep> widened(const StepRequest& request, StepFn make) {
  if (!is_half(request.inputs[0].dtype)) return make(request);
  return std::make_unique<WidenedStep>(request.inputs, request.result, request.table,
                                       [&](std::span<const Layout> wide, const TensorType& result) {
                                         return make({wide, result, request.attributes, request.table, request.epilogue});
                                       });
}

}  // namespace walle

// IntegerSum and IntegerQuantize, element by element, in the kernels of bytes.
//
// IntegerSum: (a - a's zero point) * its scale + (b - b's zero point) * its scale, rounded to the nearest (ties to even), + the
// result's zero point, saturated: a sum of quantised numbers whose scales are in units of the result's. Operands: a, its scale
// and zero point, b of a's shape, its scale and zero point, the result's zero point; all bytes but the scales, which are float32.
// Attribute: `activation`, which may be Relu.
//
// IntegerQuantize: x / scale rounded to the nearest (ties to even), + the zero point, saturated; NaN gives 0. Operands: x and the
// scale, float32, and the zero point, a byte, of which each is one number.
#include <algorithm>

#include "atomic/atomic.h"
#include "kernels/bytes.h"

namespace walle {

namespace {

enum Operands : std::size_t { kA, kScaleA, kZeroA, kB, kScaleB, kZeroB, kResultZero };

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

constexpr std::int64_t kStretch = 1 << 14;  // elements that a team's member takes at a time

// The bounds are those of the result's type, less its zero point.
ByteRange range_of(std::byte zero, bool is_signed, bool relu) {
  const auto point = std::to_integer<std::uint8_t>(zero);
  const std::int32_t whole = is_signed ? static_cast<std::int8_t>(point) : point, least = is_signed ? -128 : 0;
  return {relu ? 0.0f : static_cast<float>(least - whole), static_cast<float>(least + 255 - whole), whole};
}

class IntegerSumStep final : public SharedStep {
 public:
  explicit IntegerSumStep(const StepRequest& request)
      : sum_(bytes(request.table).sum),
        count_(element_count(request.result.shape)),
        relu_(request.attributes.get_string("activation", "") == "Relu"),
        signed_{request.inputs[kA].dtype == DType::i8, request.inputs[kB].dtype == DType::i8, request.result.dtype == DType::i8} {
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    BytesSum whole;
    for (std::size_t k = 0; k < 2; ++k) {
      whole.flip[k] = signed_[k] ? 0x80 : 0;
      whole.zero[k] = std::to_integer<std::uint8_t>(*inputs[k == 0 ? kZeroA : kZeroB]) ^ whole.flip[k];
      whole.scale[k] = *reinterpret_cast<const float*>(inputs[k == 0 ? kScaleA : kScaleB]);
    }
    whole.range = range_of(*inputs[kResultZero], signed_[2], relu_);
    team.each((count_ + kStretch - 1) / kStretch,
              [&](std::int64_t stretch, int) {
                const std::int64_t first = stretch * kStretch;
                BytesSum part = whole;
                part.in[0] = reinterpret_cast<const std::uint8_t*>(inputs[kA]) + first;
                part.in[1] = reinterpret_cast<const std::uint8_t*>(inputs[kB]) + first;
                part.out = reinterpret_cast<std::uint8_t*>(output) + first;
                part.count = std::min(kStretch, count_ - first);
                sum_(part);
              },
              static_cast<double>(count_));
  }

 private:
  void (*sum_)(const BytesSum&) noexcept;
  std::int64_t count_;
  bool relu_;
  std::array<bool, 3> signed_;  // a, b, the result
};

class IntegerQuantizeStep final : public SharedStep {
 public:
  explicit IntegerQuantizeStep(const StepRequest& request)
      : round_(bytes(request.table).round),
        count_(element_count(request.result.shape)),
        signed_(request.result.dtype == DType::i8) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    BytesRound whole;
    whole.scale = *reinterpret_cast<const float*>(inputs[1]);
    whole.range = range_of(*inputs[2], signed_, false);
    team.each((count_ + kStretch - 1) / kStretch,
              [&](std::int64_t stretch, int) {
                const std::int64_t first = stretch * kStretch;
                BytesRound part = whole;
                part.in = reinterpret_cast<const float*>(inputs[0]) + first;
                part.out = reinterpret_cast<std::uint8_t*>(output) + first;
                part.count = std::min(kStretch, count_ - first);
                round_(part);
              },
              static_cast<double>(count_));
  }

 private:
  void (*round_)(const BytesRound&) noexcept;
  std::int64_t count_;
  bool signed_;
};

}  // namespace

TensorType infer_integer_sum(std::span<const Operand> operands, const Attributes& attributes) {
  const auto refuse = [](ErrorKind kind, const std::string& what) { return Error(kind, "IntegerSum: " + what); };
  for (const std::size_t i : {kA, kB})
    if (!is_byte(operands[i].dtype) || operands[i + 2].dtype != operands[i].dtype || operands[i + 1].dtype != DType::f32)
      throw refuse(ErrorKind::dtype, "an operand is uint8 or int8, its scale float32 and its zero point of its dtype");
  if (!is_byte(operands[kResultZero].dtype)) throw refuse(ErrorKind::dtype, "the result's zero point is uint8 or int8");
  for (const std::size_t i : {kScaleA, kZeroA, kScaleB, kZeroB, kResultZero})
    if (element_count(operands[i].shape) != 1) throw refuse(ErrorKind::shape, "scales and zero points are one number each");
  if (operands[kA].shape != operands[kB].shape)
    throw refuse(ErrorKind::shape, "operands of " + to_string(operands[kA].shape) + " and " + to_string(operands[kB].shape));
  const std::string activation = attributes.get_string("activation", "");
  if (!activation.empty() && activation != "Relu")
    throw refuse(ErrorKind::unsupported, "the activation may be Relu, not '" + activation + "'");
  return {operands[kResultZero].dtype, operands[kA].shape};
}

TensorType infer_integer_quantize(std::span<const Operand> operands, const Attributes&) {
  if (operands[0].dtype != DType::f32 || operands[1].dtype != DType::f32 || !is_byte(operands[2].dtype))
    throw Error(ErrorKind::dtype, "IntegerQuantize: x and the scale are float32, the zero point is uint8 or int8");
  if (element_count(operands[1].shape) != 1 || element_count(operands[2].shape) != 1)
    throw Error(ErrorKind::shape, "IntegerQuantize: the scale and the zero point are one number each");
  return {operands[2].dtype, operands[0].shape};
}

std::unique_ptr<HostStep> make_integer_quantize(const StepRequest& request) {
  return std::make_unique<IntegerQuantizeStep>(request);
}
std::unique_ptr<HostStep> make_integer_sum(const StepRequest& request) { return std::make_unique<IntegerSumStep>(request); }

}  // namespace walle

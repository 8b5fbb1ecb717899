// IntegerSum: (a - a's zero point) * its scale + (b - b's zero point) * its scale, rounded to the nearest (ties to even), + the
// result's zero point, saturated: a sum of quantised numbers whose scales are in units of the result's. Operands: a, its scale and
// zero point, b of a's shape, its scale and zero point, the result's zero point; all bytes but the scales, which are float32.
// Attribute: `activation`, which may be Relu.
#include <algorithm>

#include "atomic/atomic.h"
#include "kernels/bytes.h"

namespace walle {

namespace {

enum Operands : std::size_t { kA, kScaleA, kZeroA, kB, kScaleB, kZeroB, kResultZero };

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

class IntegerSumStep final : public SharedStep {
 public:
  explicit IntegerSumStep(const StepRequest& request)
      : sum_(bytes(request.table).sum),
        count_(element_count(request.result.shape)),
        relu_(request.attributes.get_string("activation", "") == "Relu"),
        signed_{request.inputs[kA].dtype == DType::i8, request.inputs[kB].dtype == DType::i8, request.result.dtype == DType::i8} {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kStretch = 1 << 14;
    BytesSum whole;
    for (std::size_t k = 0; k < 2; ++k) {
      whole.flip[k] = signed_[k] ? 0x80 : 0;
      whole.zero[k] = std::to_integer<std::uint8_t>(*inputs[k == 0 ? kZeroA : kZeroB]) ^ whole.flip[k];
      whole.scale[k] = *reinterpret_cast<const float*>(inputs[k == 0 ? kScaleA : kScaleB]);
    }
    const auto point = std::to_integer<std::uint8_t>(*inputs[kResultZero]);
    const std::int32_t zero = signed_[2] ? static_cast<std::int8_t>(point) : point, least = signed_[2] ? -128 : 0;
    whole.range = {relu_ ? 0.0f : static_cast<float>(least - zero), static_cast<float>(least + 255 - zero), zero};
    team.each(
        (count_ + kStretch - 1) / kStretch,
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

std::unique_ptr<Step> make_integer_sum(const StepRequest& request) { return std::make_unique<IntegerSumStep>(request); }

}  // namespace walle

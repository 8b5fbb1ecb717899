// Clip between numbers as one step: the maximum and the minimum of a block that stays in cache.
#include <algorithm>
#include <limits>

#include "atomic/fused.h"

namespace walle {

namespace {

constexpr std::size_t type_index(DType dtype) noexcept { return dtype == DType::f64 ? 1 : 0; }

class ClipStep final : public SharedStep {
 public:
  ClipStep(const CompositeProblem& problem, double low, double high)
      : maximum_(problem.table.binary[static_cast<std::size_t>(BinaryOp::Maximum)][type_index(problem.operands[0].dtype)]),
        minimum_(problem.table.binary[static_cast<std::size_t>(BinaryOp::Minimum)][type_index(problem.operands[0].dtype)]),
        count_(element_count(problem.operands[0].shape)),
        item_(static_cast<std::int64_t>(item_size(problem.operands[0].dtype))),
        low_{static_cast<float>(low), low},
        high_{static_cast<float>(high), high} {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kPiece = 4096;
    const auto bound = [&](const Number& number) -> const void* {
      return item_ == sizeof(float) ? static_cast<const void*>(&number.narrow) : &number.wide;
    };
    team.each((count_ + kPiece - 1) / kPiece,
              [&](std::int64_t i, int) {
                const std::int64_t offset = i * kPiece * item_, count = std::min(kPiece, count_ - i * kPiece);
                maximum_(inputs[0] + offset, 1, bound(low_), 0, output + offset, count);
                minimum_(output + offset, 1, bound(high_), 0, output + offset, count);
              },
              2.0 * static_cast<double>(count_));
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  struct Number {
    float narrow;
    double wide;
  };
  BinaryFn maximum_, minimum_;
  std::int64_t count_, item_;
  Number low_, high_;
};

bool clip_applies(const CompositeProblem& problem) {
  return problem.outputs == 1 && clip_bounds(problem.operands, problem.attributes).has_value();
}

std::unique_ptr<HostStep> clip_make(const CompositeProblem& problem) {
  const auto [low, high] = *clip_bounds(problem.operands, problem.attributes);
  return std::make_unique<ClipStep>(problem, low, high);
}

}  // namespace

std::optional<std::pair<double, double>> clip_bounds(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = operands[0].dtype;
  if (dtype != DType::f32 && dtype != DType::f64) return std::nullopt;
  const auto bound = [&](std::size_t index, const char* name, double none) -> std::optional<double> {
    if (index >= operands.size() || operands[index].absent) return attributes.get_float(name, none);
    const Tensor* value = operands[index].constant;
    if (value == nullptr || value->size() != 1 || value->dtype() != dtype || !value->shape().empty()) return std::nullopt;
    return dtype == DType::f64 ? *value->data<double>() : static_cast<double>(*value->data<float>());
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto low = bound(1, "min", -kInfinity), high = bound(2, "max", kInfinity);
  if (!low || !high) return std::nullopt;
  return std::pair{*low, *high};
}

const Fused kFusedClip{&clip_applies, &clip_make, true};

}  // namespace walle

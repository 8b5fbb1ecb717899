// Activations of float32 as one pass over memory.
#include <algorithm>

#include "atomic/fused.h"
#include "core/loop_nest.h"

namespace walle {

namespace {

class MapStep final : public SharedStep {
 public:
  MapStep(const CompositeProblem& problem, Map map)
      : kernel_(problem.table.map[static_cast<std::size_t>(map.op)]),
        count_(element_count(problem.operands[0].shape)),
        a_(static_cast<float>(map.a)),
        b_(static_cast<float>(map.b)) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kPiece = 1 << 14;
    team.each((count_ + kPiece - 1) / kPiece, [&](std::int64_t i, int) {
      const std::int64_t first = i * kPiece, bytes = first * static_cast<std::int64_t>(sizeof(float));
      kernel_(inputs[0] + bytes, output + bytes, std::min(kPiece, count_ - first), a_, b_);
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  MapFn kernel_;
  std::int64_t count_;
  float a_, b_;
};

class PReluStep final : public SharedStep {
 public:
  explicit PReluStep(const CompositeProblem& problem) : kernel_(problem.table.prelu) {
    const Dims &shape = problem.operands[0].shape, &slope = problem.operands[1].shape, strides = contiguous_strides(shape);
    nest_ = LoopNest<3>::make(shape, {strides, broadcast_strides(slope, contiguous_strides(slope), shape), strides},
                              {sizeof(float), sizeof(float), sizeof(float)});
    period_ = nest_.row_stride(1, sizeof(float)) == 0 ? 1 : nest_.row();
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    nest_.split(team, {inputs[0], inputs[1], output}, 1, [&](const auto& piece, const auto& from, int) {
      piece.walk(from, 1, [&](const auto& at) {
        kernel_(reinterpret_cast<const float*>(at[0]), reinterpret_cast<const float*>(at[1]), period_,
                reinterpret_cast<float*>(at[2]), piece.row());
      });
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  PReluFn kernel_;
  LoopNest<3> nest_;
  std::int64_t period_;
};

// A composite's map.
struct Form {
  std::string_view composite;
  MapOp op;
  std::string_view a;
  double a_default;
  std::string_view b;
  double b_default;
};
constexpr Form kForms[] = {
#define WALLE_MAP(op, composite, a, a_default, b, b_default) {#composite, MapOp::op, a, a_default, b, b_default},
#include "kernels/kernels.inc"
#undef WALLE_MAP
};

bool map_applies(const CompositeProblem& problem) {
  const bool has_kernel = problem.outputs == 1 && problem.operands[0].dtype == DType::f32 && has_fused_kernels(problem.table);
  return has_kernel && find_map(problem.composite, problem.attributes);
}

std::unique_ptr<HostStep> map_make(const CompositeProblem& problem) {
  return std::make_unique<MapStep>(problem, *find_map(problem.composite, problem.attributes));
}

bool prelu_applies(const CompositeProblem& problem) {
  const Operand &x = problem.operands[0], &slope = problem.operands[1];
  if (problem.outputs != 1 || x.dtype != DType::f32 || slope.dtype != DType::f32 || problem.table.prelu == nullptr) return false;
  broadcast_strides(slope.shape, contiguous_strides(slope.shape), x.shape);  // throws where they cannot be broadcast
  return true;
}

std::unique_ptr<HostStep> prelu_make(const CompositeProblem& problem) { return std::make_unique<PReluStep>(problem); }

}  // namespace

bool is_map(std::string_view composite) noexcept {
  return std::any_of(std::begin(kForms), std::end(kForms), [&](const Form& form) { return form.composite == composite; });
}

std::optional<Map> find_map(std::string_view composite, const Attributes& attributes) {
  const auto* form =
      std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& one) { return one.composite == composite; });
  if (form == std::end(kForms)) return std::nullopt;
  Map map{form->op};
  if (!form->a.empty()) map.a = attributes.get_float(form->a, form->a_default);
  if (!form->b.empty()) map.b = attributes.get_float(form->b, form->b_default);
  if (map.op == MapOp::GeluErf) {
    const std::string approximate = attributes.get_string("approximate", "none");
    if (approximate == "tanh")
      map.op = MapOp::GeluTanh;
    else if (approximate != "none")
      return std::nullopt;
  }
  return map;
}

const Fused kFusedMap{&map_applies, &map_make};
const Fused kFusedPRelu{&prelu_applies, &prelu_make};

}  // namespace walle

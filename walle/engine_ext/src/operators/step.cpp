#include "operators/step.h"

#include "atomic/conversion.h"
#include "atomic/elementwise.h"
#include "atomic/products/matmul.h"
#include "atomic/reduction.h"

namespace walle {

namespace {

std::unique_ptr<HostStep> make_listed(const ListedKernel& kernel, std::span<const Layout> inputs, const TensorType& result,
                                      std::span<const std::size_t> axes, const Attributes& attributes, const Table& table,
                                      const Epilogue& epilogue) {
  if (is_half(inputs[0].dtype) && widens(kernel.family))
    return std::make_unique<WidenedStep>(inputs, result, table, [&](std::span<const Layout> wide, const TensorType& wide_result) {
      return make_listed(kernel, wide, wide_result, axes, attributes, table, epilogue);
    });
  const auto type = static_cast<std::size_t>(compute_index(inputs[0].dtype));
  switch (kernel.family) {
    case Family::unary: return make_unary_step(table.unary[kernel.code][type], inputs, result);
    case Family::test: return make_unary_step(table.test[kernel.code][type], inputs, result);
    case Family::part: return make_unary_step(table.part[kernel.code][type], inputs, result);
    case Family::binary: return make_binary_step(table.binary[kernel.code][type], inputs, result);
    case Family::compare: return make_binary_step(table.compare[kernel.code][type], inputs, result);
    case Family::select: return make_select_step(inputs, result, table);
    case Family::reduce: return make_reduce_step(static_cast<ReduceOp>(kernel.code), inputs[0], axes, table);
    case Family::mean: return make_mean_step(inputs[0], axes, table);
    case Family::arg:
      return make_arg_step(static_cast<ArgOp>(kernel.code), attributes.get_int("select_last_index", 0) != 0, inputs[0], axes,
                           table);
    case Family::matmul: break;
  }
  return make_matmul_step(inputs, result, table, epilogue);
}

}  // namespace

std::unique_ptr<HostStep> make_step(const OpDef& op, std::span<const Layout> inputs, const TensorType& result,
                                    std::span<const std::size_t> axes, const Attributes& attributes, const Table& table,
                                    const Epilogue& epilogue, ScoreScale score_scale) {
  if (const auto* listed = op.as<ListedKernel>()) return make_listed(*listed, inputs, result, axes, attributes, table, epilogue);
  if (const auto* own = op.as<OwnKernel>()) return own->make_step({inputs, result, attributes, table, epilogue});
  if (const Fused* fused = op.fused()) return make_fused(*fused, op.name, inputs, attributes, table, score_scale);
  throw Error(ErrorKind::unsupported, std::string(op.name) + " has no kernel");
}

}  // namespace walle

// Fused composites: kernels that compute a composite operator in one step. The decomposition is the operator's definition; a plan
// takes the step instead where it applies, and tests compare the two.
#pragma once
#include <optional>

#include "atomic/algorithm.h"

namespace walle {

struct CompositeProblem {
  std::string_view composite;
  std::span<const Operand> operands;
  const Attributes& attributes;
  int outputs;
  const Table& table;
};

// The result has the first operand's type and shape.
using Fused = Algorithm<CompositeProblem>;

// Null where the composite has no step of its own.
const Fused* find_fused(std::string_view composite);
inline bool applies(const Fused& fused, const CompositeProblem& problem) { return !fused.parameters(problem).empty(); }
std::unique_ptr<Step> make_fused(const Fused& fused, std::string_view composite, std::span<const Layout> inputs,
                                 const Attributes& attributes, const Table& table);

// A backend has kernels for all of them, or for none.
inline bool has_fused_kernels(const Table& table) noexcept { return table.softmax != nullptr; }

// The map that computes a composite of one operand element by element, and so in any layout; nothing where none does. The list of
// maps and of their attributes is that of kernels/kernels.inc.
std::optional<Map> find_map(std::string_view composite, const Attributes& attributes);
bool is_map(std::string_view composite) noexcept;

// Bytes of the operands and the result.
Work moved_work(const CompositeProblem& problem, std::int64_t parameter);

extern const Fused kFusedMap, kFusedPRelu;  // fused_maps.cpp
// fused_rows.cpp. Softmax takes three operands where plan/fuse_softmax.cpp found them: scores, one number that they are
// multiplied by (or divided, where the attribute `divides` is 1), and a mask that is added, over the last axis; each of the
// latter two may be absent.
extern const Fused kFusedSoftmax, kFusedLogSoftmax, kFusedLayerNorm, kFusedRmsNorm;

}  // namespace walle

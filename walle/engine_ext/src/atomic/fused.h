// Fused composites: kernels that compute a composite operator in one step. The decomposition is the operator's definition; a plan
// takes the step instead where it applies, and tests compare the two.
#pragma once
#include <optional>

#include "atomic/atomic.h"

namespace walle {

// How operand 1 of a Softmax, which plan/fuse_softmax.cpp adds, scales the scores.
enum class ScoreScale : std::uint8_t { multiplies, divides };

struct CompositeProblem {
  std::string_view composite;
  std::span<const Operand> operands;
  const Attributes& attributes;
  int outputs;
  const Table& table;
  ScoreScale score_scale = ScoreScale::multiplies;
};

// The kernel of a composite. It is not an Algorithm, because no search weighs it: lowering takes it wherever it applies. The
// result has the first operand's type and shape.
struct Fused {
  bool (*applies)(const CompositeProblem& problem);
  std::unique_ptr<HostStep> (*make)(const CompositeProblem& problem);
  // Made of kernels that every instruction set has, and taken in programs that are differentiated only: elsewhere, other passes
  // look for the parts.
  bool for_gradients = false;
};

// Null if the composite has no fused step.
const Fused* find_fused(std::string_view composite);
std::unique_ptr<HostStep> make_fused(const Fused& fused, std::string_view composite, std::span<const Layout> inputs,
                                     const Attributes& attributes, const Table& table, ScoreScale score_scale);

// An instruction set has kernels for all of them, or for none.
inline bool has_fused_kernels(const Table& table) noexcept { return table.softmax != nullptr; }

// The map that computes a composite of one operand element by element, and so in any layout; nothing where none does. The list of
// maps and of their attributes is that of kernels/kernels.inc.
std::optional<Map> find_map(std::string_view composite, const Attributes& attributes);
bool is_map(std::string_view composite) noexcept;

// Return the bounds of a Clip of float32 or float64, low and high, where they are numbers that are known before running; infinite
// where they are absent.
std::optional<std::pair<double, double>> clip_bounds(std::span<const Operand> operands, const Attributes& attributes);

extern const Fused kFusedClip, kFusedMap, kFusedPRelu;  // fused_maps.cpp
// fused_rows.cpp. Softmax takes three operands where plan/fuse_softmax.cpp found them: scores, one number that scales them
// (score_scale), and a mask that is added, over the last axis; each of the latter two may be absent.
extern const Fused kFusedSoftmax, kFusedLogSoftmax, kFusedLayerNorm, kFusedRmsNorm;

}  // namespace walle

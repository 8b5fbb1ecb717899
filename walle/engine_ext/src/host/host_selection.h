// Selection of search on an instruction set, and the alternatives of each operator that it chooses among.
#pragma once
#include "atomic/products/convolution.h"
#include "atomic/products/linear.h"
#include "host/packing.h"
#include "plan/kernel_set.h"

namespace walle {

// Form of a value that an alternative reads or gives.
enum class Form : std::uint8_t { none, plain, packed };

// One way to compute an op: its algorithm, the forms of its operands and of its result, and its predicted cost.
struct Alternative {
  double us = 0;                                                         // predicted cost but for changes of layout
  Form first = Form::plain, others = Form::plain, result = Form::plain;  // first operand, further ones that are not constant
  bool follows = false;                                                  // computes upon packed values (can_follow_packed)
  const ConvAlgorithm* conv = nullptr;
  const LinearAlgorithm* linear = nullptr;
  std::int64_t parameter = 0;
  bool by_name = false;  // taken only where it is forced
  double rates_us = 0;   // us by rates, where Alternatives::is_learned

  std::string_view algorithm() const noexcept { return conv != nullptr ? conv->name : linear != nullptr ? linear->name : ""; }
  bool is(const AlgorithmCost& one) const noexcept { return algorithm() == one.algorithm && parameter == one.parameter; }
};

struct Alternatives {
  std::vector<Alternative> ways;     // at least one; in the order in which a tie is decided
  std::vector<AlgorithmCost> shown;  // all that were weighed, those taken by name only too, the cheapest first
  bool is_learned = false;           // costs are a performance model's
  std::vector<int> sources;          // operands of an alternative that follows: those of a raster with renames looked through
};

class LearnedCosts;  // host/learned_costs.h

// Return the alternatives of every op of a program. Throws Error (model) for a forced algorithm that is not a candidate.
std::vector<Alternatives> list_alternatives(const Program& program, const Table& table, const Packing& packing,
                                            const Forced& forced, const Rates& rates, const LearnedCosts& learned);

struct HostSelection final : PrimitiveSelection {
  struct Choice {
    Alternative way;
    std::vector<AlgorithmCost> candidates;  // the chosen one first
    std::vector<int> sources;
  };
  std::vector<Choice> choices;  // by op
};

}  // namespace walle

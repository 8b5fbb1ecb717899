// Algorithms of an operator, each as one record, and their search: the cheapest by the rates is taken (semi-auto search,
// §4.1). A problem is all that decides which algorithms apply and what they cost: shapes, layouts and backend.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "atomic/atomic.h"
#include "atomic/epilogue_kernel.h"
#include "atomic/rates.h"

namespace walle {

inline constexpr std::int64_t kFloat = sizeof(float);

// `parameter` is the algorithm's own: a Winograd unit, say, or how deep Strassen's recursion goes.
template <class Problem>
struct Algorithm {
  std::string_view name;
  // The parameters that may be tried; none: the algorithm does not apply.
  std::vector<std::int64_t> (*parameters)(const Problem& problem);
  // Q of eq. 3.
  Work (*work)(const Problem& problem, std::int64_t parameter);
  // The constant weights `w`, row-major, in the order in which the step reads them as its operand 1; null: it reads them
  // unchanged.
  Tensor (*pack)(const Problem& problem, std::int64_t parameter, const float* w);
  std::unique_ptr<HostStep> (*make)(const Problem& problem, std::int64_t parameter, const EpilogueKernel& epilogue);
  // Taken where it is asked for by name only.
  bool by_name = false;
};

// In the order in which a tie is decided.
template <class Problem>
using Algorithms = std::span<const Algorithm<Problem>* const>;

// The parameters of an algorithm that has none: 0, where it applies.
inline std::vector<std::int64_t> single_parameter(bool applies) {
  return applies ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}

template <class Problem>
struct Choice {
  const Algorithm<Problem>* algorithm;
  std::int64_t parameter;
  double us;  // predicted
};

// Return the algorithms that apply, or the one of this name, with each of their parameters: the cheapest first, those that are
// taken by name only last.
template <class Problem>
std::vector<Choice<Problem>> weigh(Algorithms<Problem> algorithms, const Problem& problem, const Rates& rates,
                                   std::string_view name = {}) {
  std::vector<Choice<Problem>> choices;
  for (const Algorithm<Problem>* algorithm : algorithms) {
    if (!name.empty() && algorithm->name != name) continue;
    for (const std::int64_t parameter : algorithm->parameters(problem))
      choices.push_back({algorithm, parameter, rates.us(algorithm->work(problem, parameter))});
  }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice<Problem>& a, const Choice<Problem>& b) {
    if (a.algorithm->by_name != b.algorithm->by_name) return b.algorithm->by_name;
    return !a.algorithm->by_name && a.us < b.us;
  });
  return choices;
}

}  // namespace walle

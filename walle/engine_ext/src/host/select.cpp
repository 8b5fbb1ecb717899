// Search over a whole program: algorithms and layouts of all operators together, as a partitioned Boolean quadratic problem
// (Anderson and Gregg, CGO 2018; eq. 1 of §4.1 is its special case without costs of edges).
//
// An op is a node whose choices are its alternatives. A value is a node too, whose choices are the forms in which it exists: a
// change of layout is then paid once, however many ops read its result.
#include <algorithm>
#include <limits>
#include <tuple>

#include "graph/index.h"
#include "host/host_kernels.h"
#include "host/host_selection.h"
#include "host/work.h"
#include "search/pbqp.h"

namespace walle {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Forms in which a value exists.
enum State : std::size_t { kAbsent, kPlain, kPacked, kBoth, kStates };

// Of the ways of an op and the states of a value.
pbqp::CostMatrix matrix_of(const std::vector<Alternative>& ways, std::vector<double> costs) {
  return {static_cast<int>(ways.size()), static_cast<int>(kStates), std::move(costs)};
}

bool has(std::size_t state, Form form) noexcept {
  switch (form) {
    case Form::none: return true;
    case Form::plain: return state == kPlain || state == kBoth;
    case Form::packed: return state == kPacked || state == kBoth;
  }
  return false;
}

// Whether a convolution may pack its result. Else everything stays plain.
bool packs(const std::vector<Alternatives>& alternatives) {
  return std::any_of(alternatives.begin(), alternatives.end(), [](const Alternatives& one) {
    return std::any_of(one.ways.begin(), one.ways.end(),
                       [](const Alternative& way) { return way.conv != nullptr && way.conv->pack != nullptr; });
  });
}

// Return the cheapest way of each op by itself, that without changes of layout where there is one, and the sum of their costs.
std::pair<std::vector<int>, double> cheapest_alone(const std::vector<Alternatives>& alternatives) {
  std::vector<int> choices;
  double us = 0;
  for (const Alternatives& one : alternatives) {
    const auto rank = [](const Alternative& way) {
      return std::pair(way.first != Form::plain || way.result != Form::plain, way.us);
    };
    const auto best = std::min_element(one.ways.begin(), one.ways.end(),
                                       [&](const Alternative& a, const Alternative& b) { return rank(a) < rank(b); });
    choices.push_back(static_cast<int>(best - one.ways.begin()));
    us += best->us;
  }
  return {std::move(choices), us};
}

class Problem {
 public:
  Problem(const Program& program, const std::vector<Alternatives>& alternatives, const Packing& packing, const Rates& rates)
      : program_(program), alternatives_(alternatives), packing_(packing), rates_(rates), node_(program.values.size(), -1) {}

  // Return the index of the way of each op, and the cost of all.
  std::pair<std::vector<int>, double> solve() {
    for (const Alternatives& one : alternatives_) {
      std::vector<double> costs;
      for (const Alternative& way : one.ways) costs.push_back(way.us);
      problem_.costs.push_back(std::move(costs));
    }
    for (std::size_t i = 0; i < program_.ops.size(); ++i) add_op(i);
    for (const int output : program_.outputs)
      for (std::size_t state = 0; state < kStates; ++state)
        if (node_[at(output)] >= 0 && !has(state, Form::plain)) problem_.costs[at(node_[at(output)])][state] = kNever;
    try {
      PbqpSolution solution = solve_pbqp(problem_);
      solution.choices.resize(program_.ops.size());
      return {std::move(solution.choices), solution.cost};
    } catch (const Error&) {  // the solver's limit, or forced algorithms that do not fit: any choice can be applied
      return cheapest_alone(alternatives_);
    }
  }

 private:
  void add_op(std::size_t i) {
    const ProgramOp& op = program_.ops[i];
    const std::vector<Alternative>& ways = alternatives_[i].ways;
    const auto reads = [&](int value, auto&& form) {
      if (value < 0 || program_.values[at(value)].is_constant()) return;
      std::vector<double> matrix;
      bool matters = false;
      for (const Alternative& way : ways)
        for (std::size_t state = 0; state < kStates; ++state) {
          matrix.push_back(has(state, form(way)) ? 0 : kNever);
          matters = matters || form(way) != Form::none;
        }
      if (matters) problem_.add_edge(static_cast<int>(i), node_of(value), matrix_of(ways, std::move(matrix)));
    };
    const std::vector<int>& sources = alternatives_[i].sources;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto form = [&](const Alternative& way) { return k == 0 ? way.first : way.others; };
      if (sources.empty()) {
        reads(op.inputs[k], form);
        continue;
      }
      // A raster's value of one element stays plain.
      const bool is_one = op.is_raster() && element_count(program_.values[at(sources[k])].shape) == 1;
      reads(op.inputs[k], [&](const Alternative& way) { return way.follows ? Form::none : form(way); });
      reads(sources[k], [&](const Alternative& way) { return !way.follows ? Form::none : is_one ? Form::plain : form(way); });
    }
    // Merging joins a raster and the packing of its result. The joined raster moves single elements: it took up to 20 times as
    // long as one that moves rows (channel shuffles of 28 x 28 and 14 x 14 planes, avx512).
    constexpr double kJoined = 16;
    const bool is_rename = ways.back().result == Form::none;
    const double change = change_us(op.output) * (op.is_raster() && !is_rename ? kJoined : 1);
    std::vector<double> matrix;
    for (const Alternative& way : ways)
      for (std::size_t state = 0; state < kStates; ++state) {
        const Form other = way.result == Form::plain ? Form::packed : Form::plain;
        if (way.result == Form::none || state == kAbsent)
          matrix.push_back(way.result == Form::none && state == kAbsent ? 0 : kNever);
        else
          matrix.push_back(has(state, other) ? change : 0);
      }
    problem_.add_edge(static_cast<int>(i), node_of(op.output), matrix_of(ways, std::move(matrix)));
  }

  // The node of a value. What no op gives is an input, which is there in its plain form.
  int node_of(int value) {
    int& node = node_[at(value)];
    if (node >= 0) return node;
    node = static_cast<int>(problem_.costs.size());
    const double change = change_us(value);
    const bool given = program_.values[at(value)].input >= 0;
    const double packed = given || change == kNever ? change : 0;
    problem_.costs.push_back({given ? kNever : 0, 0, packed, packed});
    return node;
  }

  // Cost of a change between the forms of a value; infinite where it has one form.
  double change_us(int value) const {
    const ProgramValue& given = program_.values[at(value)];
    if (given.dtype != DType::f32 || given.shape.size() < 2 || given.shape[1] == 0) return kNever;
    const std::int64_t plain = element_count(given.shape);
    return quantised(
        rates_.us(layout_work(plain, plain / given.shape[1] * packing_.blocks_of(given.shape[1]) * packing_.pack())));
  }

  const Program& program_;
  const std::vector<Alternatives>& alternatives_;
  const Packing& packing_;
  const Rates& rates_;
  PbqpProblem problem_;
  std::vector<int> node_;  // by value, -1 for none
};

}  // namespace

std::unique_ptr<const PrimitiveSelection> HostKernels::select(const Program& program, const Forced& forced) const {
  const Packing packing(table_.pack);
  std::vector<Alternatives> alternatives = list_alternatives(program, table_, packing, forced);
  auto selection = std::make_unique<HostSelection>();
  selection->source = rates_source(table_);
  std::vector<int> choices;
  std::tie(choices, selection->us) =
      packs(alternatives) ? Problem(program, alternatives, packing, rates(table_)).solve() : cheapest_alone(alternatives);
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    const Alternative& way = alternatives[i].ways[at(choices[i])];
    std::vector<AlgorithmCost>& shown = alternatives[i].shown;
    const auto chosen = std::find_if(shown.begin(), shown.end(), [&](const AlgorithmCost& one) { return way.is(one); });
    if (chosen != shown.end()) {
      chosen->us = way.us;
      std::rotate(shown.begin(), chosen, chosen + 1);
    }
    selection->choices.push_back({way, std::move(shown), std::move(alternatives[i].sources)});
  }
  return selection;
}

}  // namespace walle

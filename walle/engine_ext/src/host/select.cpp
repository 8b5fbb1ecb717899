// Search over a whole program: algorithms and layouts of all operators together, as a partitioned Boolean quadratic problem
// (Anderson and Gregg, CGO 2018; eq. 1 of §4.1 is its special case without costs of edges).
//
// An op is a node whose choices are the forms in which it reads and gives values, each by its cheapest alternative. A value that
// several ops read, each in a form that it chooses, is a node too, whose choices are the forms in which the value exists: a
// change of layout is then paid once. Other values are edges between ops.
#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "graph/index.h"
#include "host/host_kernels.h"
#include "host/host_selection.h"
#include "host/learned_costs.h"
#include "host/work.h"
#include "search/pbqp.h"

namespace walle {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sets of forms.
using Forms = unsigned;
constexpr Forms kPlain = 1, kPacked = 2;

Forms forms_of(Form form) noexcept { return form == Form::none ? 0 : form == Form::plain ? kPlain : kPacked; }

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

// Return the least cost by rates of an op of which an alternative was chosen. Where rates would choose another one, changes of
// layout may differ, which this leaves out.
double rates_us_of(const Alternatives& one, const Alternative& chosen) {
  if (!one.is_learned) return chosen.us;
  return std::min_element(one.ways.begin(), one.ways.end(),
                          [](const Alternative& a, const Alternative& b) { return a.rates_us < b.rates_us; })
      ->rates_us;
}

class Problem {
 public:
  Problem(const Program& program, const std::vector<Alternatives>& alternatives, const Packing& packing, const Rates& rates,
          const LearnedCosts& learned)
      : program_(program),
        alternatives_(alternatives),
        packing_(packing),
        rates_(rates),
        learned_(learned),
        ops_(program.ops.size()),
        values_(program.values.size()) {
    problem_.edges.reserve(2 * ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      add_op(ops_[i], alternatives[i].ways);
      ops_[i].is_joined = program.ops[i].is_raster() && alternatives[i].ways.back().result != Form::none;
      add_reads(i, alternatives[i]);
    }
    for (const int output : program.outputs) values_[at(output)].always |= kPlain;
    for (std::size_t i = 0; i < ops_.size(); ++i) add_value(program.ops[i].output, &ops_[i]);
    for (std::size_t value = 0; value < values_.size(); ++value)  // inputs exist in their plain form
      if (program.values[value].input >= 0) add_value(static_cast<int>(value), nullptr);
  }

  // Return the index of the alternative of each op, and the cost of all.
  std::pair<std::vector<int>, double> solve() const {
    try {
      const PbqpSolution solution = solve_pbqp(problem_);
      std::vector<int> choices;
      choices.reserve(ops_.size());
      for (const Op& op : ops_) choices.push_back(op.cheapest[op.node < 0 ? 0 : at(solution.choices[at(op.node)])]);
      if (us_ < kNever) return {std::move(choices), us_ + solution.cost};
    } catch (const Error&) {  // the solver's limit, or forced algorithms that do not fit
    }
    return cheapest_alone(alternatives_);  // any choice can be applied
  }

 private:
  // An op has a node of the problem where it has a choice.
  struct Op {
    int node = -1;
    bool is_joined = false;  // a raster, which merging joins with the packing of its result
    const std::vector<Alternative>* ways = nullptr;
    std::vector<int> cheapest;  // by choice: index of its alternative

    const Alternative& way(std::size_t choice) const { return (*ways)[at(cheapest[choice])]; }
    Forms result(std::size_t choice) const { return forms_of(way(choice).result); }
    std::size_t size() const noexcept { return cheapest.size(); }
  };
  // Reads of a value by an op whose alternatives differ in the forms that they read.
  struct Reader {
    std::size_t op;
    std::vector<Forms> forms;  // by choice
  };
  struct Value {
    Forms always = 0;  // forms that are read whatever the readers choose
    std::vector<Reader> readers;
  };

  // Of alternatives that read and give the same forms only the cheapest matters.
  void add_op(Op& op, const std::vector<Alternative>& ways) {
    op.ways = &ways;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const Alternative& way = ways[i];
      const auto same = std::find_if(op.cheapest.begin(), op.cheapest.end(), [&](int k) {
        const Alternative& other = ways[at(k)];
        return std::tie(way.first, way.others, way.result, way.follows) ==
               std::tie(other.first, other.others, other.result, other.follows);
      });
      if (same == op.cheapest.end())
        op.cheapest.push_back(static_cast<int>(i));
      else if (way.us < ways[at(*same)].us)
        *same = static_cast<int>(i);
    }
    if (op.size() == 1) {
      us_ += op.way(0).us;
      return;
    }
    std::vector<double> costs;
    for (std::size_t choice = 0; choice < op.size(); ++choice) costs.push_back(op.way(choice).us);
    op.node = add_node(std::move(costs));
  }

  int add_node(std::vector<double> costs) {
    problem_.costs.push_back(std::move(costs));
    return static_cast<int>(problem_.costs.size()) - 1;
  }

  void add_reads(std::size_t i, const Alternatives& alternatives) {
    const ProgramOp& op = program_.ops[i];
    const std::vector<int>& sources = alternatives.sources;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto form = [&](const Alternative& way) { return forms_of(k == 0 ? way.first : way.others); };
      if (sources.empty()) {
        add_read(i, op.inputs[k], form);
        continue;
      }
      // A raster's value of one element stays plain.
      const bool is_one = op.is_raster() && element_count(program_.values[at(sources[k])].shape) == 1;
      add_read(i, op.inputs[k], [&](const Alternative& way) { return way.follows ? 0 : form(way); });
      add_read(i, sources[k], [&](const Alternative& way) { return !way.follows ? 0 : is_one ? kPlain : form(way); });
    }
  }

  template <class F>
  void add_read(std::size_t i, int value, F&& form) {
    if (value < 0 || program_.values[at(value)].is_constant()) return;
    const Op& op = ops_[i];
    const Forms first = form(op.way(0));
    bool is_equal = true;
    for (std::size_t choice = 1; choice < op.size(); ++choice) is_equal = is_equal && form(op.way(choice)) == first;
    Value& read = values_[at(value)];
    if (is_equal) {
      read.always |= first;
      return;
    }
    if (read.readers.empty() || read.readers.back().op != i) read.readers.push_back({i, std::vector<Forms>(op.size())});
    for (std::size_t choice = 0; choice < op.size(); ++choice) read.readers.back().forms[choice] |= form(op.way(choice));
  }

  // Adds the costs of a value's forms. `op` gives it; null: it is an input, which exists in its plain form.
  void add_value(int index, const Op* op) {
    const Value& value = values_[at(index)];
    if (value.always == 0 && value.readers.empty()) return;
    const double pack = change_us(index, op, Form::packed), unpack = change_us(index, op, Form::plain);
    const std::size_t given = op == nullptr ? 1 : op->size();
    // Cost of reading these forms of what choice `i` gives.
    const auto cost = [&](std::size_t i, Forms read) {
      const Forms result = op == nullptr ? kPlain : op->result(i);
      if ((read & ~result) == 0) return 0.0;
      return result == 0 ? kNever : result == kPlain ? pack : unpack;
    };
    const int node = op == nullptr ? -1 : op->node;
    if (value.readers.empty()) return add_costs(node, given, [&](std::size_t i) { return cost(i, value.always); });
    if (value.readers.size() == 1) {
      const Reader& reader = value.readers.front();
      return add_edge(node, given, ops_[reader.op].node, reader.forms.size(),
                      [&](std::size_t i, std::size_t j) { return cost(i, reader.forms[j] | value.always); });
    }
    // The forms that exist; none only where a rename may leave its result out.
    constexpr std::array<Forms, 4> kStates{kPlain, kPacked, kPlain | kPacked, 0};
    bool may_be_absent = false;
    for (std::size_t i = 0; i < given; ++i) may_be_absent = may_be_absent || (op != nullptr && op->result(i) == 0);
    const std::size_t states = may_be_absent && value.always == 0 ? 4 : 3;
    const int exists = add_node(std::vector<double>(states));
    add_edge(node, given, exists, states,
             [&](std::size_t i, std::size_t state) { return cost(i, kStates[state] | value.always); });
    for (const Reader& reader : value.readers)
      add_edge(exists, states, ops_[reader.op].node, reader.forms.size(), [&](std::size_t state, std::size_t j) {
        return (reader.forms[j] & ~(kStates[state] | value.always)) == 0 ? 0 : kNever;
      });
  }

  // Adds costs of the choices of a node; of what has no node, -1, to the sum.
  template <class F>
  void add_costs(int node, std::size_t count, F&& cost) {
    if (node < 0)
      us_ += cost(0);
    else
      for (std::size_t i = 0; i < count; ++i) problem_.costs[at(node)][i] += cost(i);
  }

  template <class F>
  void add_edge(int u, std::size_t rows, int v, std::size_t columns, F&& cost) {
    if (u < 0) return add_costs(v, columns, [&](std::size_t j) { return cost(0, j); });
    if (v < 0) return add_costs(u, rows, [&](std::size_t i) { return cost(i, 0); });
    pbqp::CostMatrix matrix(static_cast<int>(rows), static_cast<int>(columns));
    for (std::size_t i = 0; i < rows; ++i) {
      double* row = matrix.mutable_row(static_cast<int>(i));
      for (std::size_t j = 0; j < columns; ++j) row[j] = cost(i, j);
    }
    problem_.add_edge(u, v, std::move(matrix));
  }

  // Cost of a change between the forms of a value; infinite where it has one form.
  double change_us(int index, const Op* op, Form to) const {
    const ProgramValue& value = program_.values[at(index)];
    if (value.dtype != DType::f32 || value.shape.size() < 2 || value.shape[1] == 0) return kNever;
    // A joined raster moves single elements: it took up to 20 times as long as one that moves rows (channel shuffles of 28 x 28
    // and 14 x 14 planes, avx512).
    constexpr double kJoined = 16;
    const double by_rates = quantised(change_by_rates_us(value.shape, packing_, rates_));
    const double us = learned_.change_us(index, to, by_rates);
    return op != nullptr && op->is_joined ? std::max(us, by_rates * kJoined) : us;
  }

  const Program& program_;
  const std::vector<Alternatives>& alternatives_;
  const Packing& packing_;
  const Rates& rates_;
  const LearnedCosts& learned_;
  std::vector<Op> ops_;
  std::vector<Value> values_;
  PbqpProblem problem_;
  double us_ = 0;  // cost of what is not left to choose
};

}  // namespace

std::unique_ptr<const PrimitiveSelection> HostKernels::select(const Program& program, const Forced& forced) const {
  const Packing packing(table_.pack);
  const Rates rates = program_rates(program, table_);
  const LearnedCosts learned(program, table_, packing, rates);
  std::vector<Alternatives> alternatives = list_alternatives(program, table_, packing, forced, rates, learned);
  auto selection = std::make_unique<HostSelection>();
  selection->source = rates_source(table_);
  selection->is_learned = learned.change_ratio() != 1;
  selection->choices.reserve(alternatives.size());
  std::vector<int> choices;
  std::tie(choices, selection->us) =
      packs(alternatives) ? Problem(program, alternatives, packing, rates, learned).solve() : cheapest_alone(alternatives);
  double changes_us = selection->us;
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    const Alternative& way = alternatives[i].ways[at(choices[i])];
    selection->is_learned = selection->is_learned || alternatives[i].is_learned;
    selection->rates_us += rates_us_of(alternatives[i], way);
    changes_us -= way.us;
    std::vector<AlgorithmCost>& shown = alternatives[i].shown;
    const auto chosen = std::find_if(shown.begin(), shown.end(), [&](const AlgorithmCost& one) { return way.is(one); });
    if (chosen != shown.end()) {
      chosen->us = way.us;
      std::rotate(shown.begin(), chosen, chosen + 1);
    }
    selection->choices.push_back({way, std::move(shown), std::move(alternatives[i].sources)});
  }
  selection->rates_us += changes_us / learned.change_ratio();
  if (selection->is_learned) selection->source = "learned, " + selection->source;
  return selection;
}

}  // namespace walle

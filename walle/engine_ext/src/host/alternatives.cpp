// The alternatives of a program's operators (§4.1): algorithms, their parameters, and the layouts of their operands.
#include <algorithm>
#include <set>

#include "graph/index.h"
#include "host/host_selection.h"
#include "host/learned_costs.h"
#include "host/packed_followers.h"
#include "host/problems.h"
#include "host/work.h"

namespace walle {

namespace {

class Lister {
 public:
  Lister(const Program& program, const Table& table, const Packing& packing, const Forced& forced, const Rates& rates,
         const LearnedCosts& learned)
      : program_(program),
        table_(table),
        packing_(packing),
        forced_(forced),
        rates_(rates),
        learned_(learned),
        source_(program.values.size(), -1) {}

  std::vector<Alternatives> run() {
    packs_ = std::any_of(program_.ops.begin(), program_.ops.end(), [&](const ProgramOp& op) {
      const auto problem = conv_problem(program_, op, table_, false);
      return problem && problem->packable;
    });
    std::vector<Alternatives> all;
    all.reserve(program_.ops.size());
    for (const ProgramOp& op : program_.ops) all.push_back(of(op));
    check_forced();
    return all;
  }

 private:
  Alternatives of(const ProgramOp& op) {
    Alternatives found;
    if (const auto problem = conv_problem(program_, op, table_, false)) {
      found = of_conv(op, *problem);
    } else if (const auto linear = linear_problem(program_, op, table_)) {
      for (const LinearChoice& choice : weigh(linear_algorithms(), *linear, rates_)) {
        Alternative way;
        way.linear = choice.algorithm;
        add_choice(choice, way, found);
      }
      show(found);
    } else if (op.is_raster()) {
      list_raster(op, found);
    } else {
      found.sources = op.inputs;
      list_following(op, found);
    }
    if (found.ways.empty()) throw Error(ErrorKind::unsupported, op.title() + ": no algorithm applies");
    if (!found.ways.front().algorithm().empty()) settle(op, found);
    return found;
  }

  // Weighs equal convolutions of a network once.
  Alternatives of_conv(const ProgramOp& op, const ConvProblem& problem) {
    const std::string name = op.attributes.get_string("algorithm", "");
    const auto known = std::find_if(convs_.begin(), convs_.end(), [&](const auto& one) { return one.first == problem; });
    if (known != convs_.end() && name.empty()) return known->second;
    Alternatives found;
    list_conv(problem, name, found);
    learned_.replace(op, found);
    show(found);
    if (name.empty()) convs_.emplace_back(problem, found);
    return found;
  }

  void list_conv(const ConvProblem& problem, const std::string& name, Alternatives& found) {
    const auto add = [&](const ConvChoice& choice, Form first) {
      Alternative way;
      way.conv = choice.algorithm;
      way.first = first;
      if (choice.algorithm->pack != nullptr) way.others = way.result = Form::packed;
      add_choice(choice, way, found);
    };
    for (const ConvChoice& choice : weigh_conv(problem, rates_, name))
      add(choice, choice.algorithm->pack == nullptr ? Form::plain : Form::packed);
    if (!can_read_plain(problem)) return;
    ConvProblem direct = problem;
    direct.plain_input = true;
    for (const ConvChoice& choice : weigh(conv_algorithms(), direct, rates_))
      if (choice.algorithm->pack != nullptr) add(choice, Form::plain);
  }

  template <class Problem>
  static void add_choice(const Choice<Problem>& choice, Alternative way, Alternatives& found) {
    way.parameter = choice.parameter;
    way.us = quantised(choice.us);
    way.by_name = choice.algorithm->by_name;
    found.ways.push_back(way);
  }

  // Lists the candidates for show, the cheapest first; of those that differ in layouts alone the cheapest.
  static void show(Alternatives& found) {
    std::vector<const Alternative*> sorted;
    sorted.reserve(found.ways.size());
    for (const Alternative& way : found.ways) sorted.push_back(&way);
    std::stable_sort(sorted.begin(), sorted.end(), [](const Alternative* a, const Alternative* b) {
      return std::pair(a->by_name, a->us) < std::pair(b->by_name, b->us);
    });
    for (const Alternative* way : sorted)
      if (std::none_of(found.shown.begin(), found.shown.end(), [&](const AlgorithmCost& shown) { return way->is(shown); }))
        found.shown.push_back({way->algorithm(), way->parameter, way->us});
  }

  // Keeps the forced algorithm, or all that need not be asked for by name.
  void settle(const ProgramOp& op, Alternatives& found) {
    if (!forced_.empty()) weighed_.insert(op.name);
    const auto forced = forced_.find(op.name);
    if (forced == forced_.end()) {
      const auto by_name = [](const Alternative& way) { return way.by_name; };
      if (!std::all_of(found.ways.begin(), found.ways.end(), by_name)) std::erase_if(found.ways, by_name);
      return;
    }
    const auto& [algorithm, parameter] = forced->second;
    std::erase_if(found.ways, [&](const Alternative& way) { return !way.is({algorithm, parameter, 0}); });
    if (found.ways.empty())
      throw Error(ErrorKind::model, "node '" + op.name + "': " + algorithm + "(" + std::to_string(parameter) +
                                        ") is not a candidate; see the plan for those that are");
  }

  // A rename of a whole value costs nothing. It is not needed where all its readers look through it.
  void list_raster(const ProgramOp& op, Alternatives& found) {
    found.sources = op.inputs;
    for (int& input : found.sources)
      if (source_[at(input)] >= 0) input = source_[at(input)];
    if (rename_offset(program_, op) == std::int64_t{0}) {
      const int source = found.sources[at(op.regions[0].source)];
      if (element_count(program_.values[at(source)].shape) == element_count(program_.values[at(op.output)].shape)) {
        source_[at(op.output)] = source;
        found.ways.push_back({});
        found.ways.push_back({0, Form::none, Form::none, Form::none});
        return;
      }
    }
    list_following(op, found);
  }

  void list_following(const ProgramOp& op, Alternatives& found) {
    found.ways.push_back({quantised(rates_.us(work_of(program_, op, table_)))});
    if (!packs_ || !can_follow_packed(program_, packing_, op, found.sources)) return;
    Alternative way{packed_us(op, rates_.us(work_of(program_, op, table_, true))), Form::packed, Form::packed, Form::packed};
    way.follows = true;
    found.ways.push_back(way);
  }

  // The padding of the last blocks is computed too.
  double packed_us(const ProgramOp& op, double us) const {
    const Dims& shape = program_.values[at(op.output)].shape;
    if (shape.size() < 2 || shape[1] == 0) return us;
    return quantised(us * static_cast<double>(packing_.blocks_of(shape[1]) * packing_.pack()) / static_cast<double>(shape[1]));
  }

  void check_forced() const {
    for (const auto& [name, algorithm] : forced_) {
      if (weighed_.contains(name)) continue;
      constexpr std::size_t kMost = 16;
      std::string known;
      std::size_t count = 0;
      for (const std::string& node : weighed_)
        if (count++ < kMost) known += (known.empty() ? "'" : ", '") + node + "'";
      if (count > kMost) known += " and " + std::to_string(count - kMost) + " more";
      throw Error(ErrorKind::model, "algorithm " + algorithm.first + " for node '" + name + "', which has none to choose from; " +
                                        (known.empty() ? std::string("no node of this plan has") : "nodes that have: " + known));
    }
  }

  const Program& program_;
  const Table& table_;
  const Packing& packing_;
  const Forced& forced_;
  const Rates rates_;
  const LearnedCosts& learned_;
  bool packs_ = false;             // a convolution may pack its result: else no op can follow
  std::vector<int> source_;        // by value: what it renames, -1 for none
  std::set<std::string> weighed_;  // nodes
  std::vector<std::pair<ConvProblem, Alternatives>> convs_;
};

}  // namespace

std::vector<Alternatives> list_alternatives(const Program& program, const Table& table, const Packing& packing,
                                            const Forced& forced, const Rates& rates, const LearnedCosts& learned) {
  return Lister(program, table, packing, forced, rates, learned).run();
}

}  // namespace walle

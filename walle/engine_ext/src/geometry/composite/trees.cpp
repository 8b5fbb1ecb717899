// TreeEnsemble: all rows traverse all trees at once, one level per step. Leaves are nodes whose successor is themselves.
#include <algorithm>
#include <limits>

#include "geometry/composite/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

enum Mode : std::int64_t { less_or_equal, less, greater_or_equal, greater, equal, not_equal, member, kModes };

Tensor whole_numbers_of(const Dims& numbers, Dims shape) {
  Tensor result = Tensor::empty(DType::i64, std::move(shape));
  std::copy(numbers.begin(), numbers.end(), result.data<std::int64_t>());
  return result;
}

class Trees {
 public:
  Trees(Emitter& emitter, Ref x, const Attributes& attributes)
      : emitter_(emitter), x_(x), attributes_(attributes), dtype_(emitter.operand(x).dtype) {
    splits_ = numbers("nodes_splits");
    count_ = splits_.size();
    features_ = required("nodes_featureids", count_);
    modes_ = required("nodes_modes", count_);
    leaf_targets_ = required("leaf_targetids", 0);
    weights_ = numbers("leaf_weights");
    if (weights_.size() != leaf_targets_.size())
      throw Error(ErrorKind::model, "TreeEnsemble has another number of leaf_weights than of leaf_targetids");
    yes_ = next("nodes_truenodeids", "nodes_trueleafs");
    no_ = next("nodes_falsenodeids", "nodes_falseleafs");
    roots_ = required("tree_roots", 0);
    for (const std::int64_t root : roots_)
      if (root < 0 || root >= static_cast<std::int64_t>(count_))
        throw Error(ErrorKind::model, "tree_roots names node " + std::to_string(root));
    for (std::size_t i = 0; i < leaf_targets_.size(); ++i)
      features_.push_back(0), modes_.push_back(modes_.front()), splits_.push_back(0);
  }

  // Return the index of each row's leaf in each tree, (rows, trees).
  Ref leaves() {
    const Dims shape = emitter_.operand(x_).shape;
    const std::int64_t columns = shape[1];
    for (const std::int64_t feature : features_)
      if (feature < 0 || feature >= columns)
        throw Error(ErrorKind::shape, "a tree asks for feature " + std::to_string(feature) + " of " + std::to_string(columns));
    const auto trees = static_cast<std::int64_t>(roots_.size());
    Ref at = emitter_.one("Expand", {whole(roots_)}, {{"shape", Dims{shape[0], trees}}});
    const Ref features = whole(features_), splits = floating(splits_, {static_cast<std::int64_t>(splits_.size())}),
              yes = whole(yes_), no = whole(no_);
    for (std::size_t level = depth(); level > 0; --level) {
      const Ref value = emitter_.one("GatherElements", {x_, taken(features, at)}, {{"axis", std::int64_t{1}}});
      const Ref condition = or_missing(met(value, taken(splits, at), at), value, at);
      at = emitter_.one("Where", {condition, taken(yes, at), taken(no, at)});
    }
    return emitter_.one("Sub", {at, whole({static_cast<std::int64_t>(count_)})});
  }

  // Return the contribution of each leaf to each target, (leaves, targets); `other` for the targets that a leaf does not add to.
  Ref table(double other) {
    const std::int64_t targets = attributes_.get_int("n_targets", 0);
    if (targets < 1) throw Error(ErrorKind::model, "TreeEnsemble needs n_targets of 1 or more");
    const auto leaves = static_cast<std::int64_t>(weights_.size());
    check_table(leaves, targets);
    std::vector<double> table(static_cast<std::size_t>(leaves * targets), other);
    for (std::int64_t i = 0; i < leaves; ++i) {
      const std::int64_t target = leaf_targets_[static_cast<std::size_t>(i)];
      if (target < 0 || target >= targets)
        throw Error(ErrorKind::model, "leaf_targetids names target " + std::to_string(target) + " of " + std::to_string(targets));
      table[static_cast<std::size_t>(i * targets + target)] = weights_[static_cast<std::size_t>(i)];
    }
    return floating(table, {leaves, targets});
  }

  std::size_t trees() const { return roots_.size(); }
  DType dtype() const { return dtype_; }

 private:
  static void check_table(std::int64_t rows, std::int64_t columns) {
    if (static_cast<std::size_t>(element_count({rows, columns})) > storage_limit() / sizeof(double))
      throw Error(ErrorKind::model, "TreeEnsemble needs a table of " + to_string({rows, columns}) + ", more than memory has");
  }
  std::vector<double> numbers(const char* name) const {
    const auto found = attributes_.get_floats(name);
    if (!found || found->empty()) throw Error(ErrorKind::model, std::string("TreeEnsemble needs the attribute '") + name + "'");
    return *found;
  }
  // `size` 0: any number except 0.
  Dims required(const char* name, std::size_t size) const {
    const auto found = attributes_.get_ints(name);
    if (!found || found->empty() || (size != 0 && found->size() != size))
      throw Error(ErrorKind::model, std::string("TreeEnsemble needs the attribute '") + name + "', " +
                                        (size == 0 ? "not empty" : std::to_string(size) + " numbers"));
    return *found;
  }
  // Return the successors of the nodes: nodes by their number, leaves by theirs after all nodes.
  Dims next(const char* ids, const char* leafs) const {
    const Dims id = required(ids, count_), leaf = required(leafs, count_);
    Dims result;
    for (std::size_t i = 0; i < count_; ++i) {
      const auto limit = static_cast<std::int64_t>(leaf[i] != 0 ? weights_.size() : count_);
      if (id[i] < 0 || id[i] >= limit)
        throw Error(ErrorKind::model, std::string(ids) + " names " + std::to_string(id[i]) + " of " + std::to_string(limit));
      result.push_back(leaf[i] != 0 ? static_cast<std::int64_t>(count_) + id[i] : id[i]);
    }
    for (std::size_t i = 0; i < weights_.size(); ++i) result.push_back(static_cast<std::int64_t>(count_ + i));
    return result;
  }
  // Return the number of levels from the roots until every row is at a leaf.
  std::size_t depth() const {
    std::vector<std::int64_t> level(roots_.begin(), roots_.end());
    std::size_t levels = 0;
    while (!level.empty()) {
      if (++levels > count_) throw Error(ErrorKind::model, "a tree leads back to one of its own nodes");
      std::vector<std::int64_t> below;
      for (const std::int64_t node : level)
        for (const std::int64_t to : {yes_[static_cast<std::size_t>(node)], no_[static_cast<std::size_t>(node)]})
          if (to < static_cast<std::int64_t>(count_)) below.push_back(to);
      std::sort(below.begin(), below.end());
      below.erase(std::unique(below.begin(), below.end()), below.end());
      level = std::move(below);
    }
    return levels;
  }

  Ref whole(const Dims& numbers) {
    return emitter_.constant(whole_numbers_of(numbers, {static_cast<std::int64_t>(numbers.size())}));
  }
  Ref floating(const std::vector<double>& numbers, Dims shape) {
    Tensor result = Tensor::empty(DType::f64, std::move(shape));
    std::copy(numbers.begin(), numbers.end(), result.data<double>());
    return emitter_.one("Cast", {emitter_.constant(result)}, {{"to", std::string(dtype_name(dtype_))}});
  }
  Ref taken(Ref table, Ref at) { return emitter_.one("Gather", {table, at}, {{"axis", std::int64_t{0}}}); }

  // Return whether the value meets the node's condition.
  Ref met(Ref value, Ref split, Ref at) {
    Dims present = modes_;
    std::sort(present.begin(), present.end());
    present.erase(std::unique(present.begin(), present.end()), present.end());
    if (present.front() < 0 || present.back() >= kModes) throw Error(ErrorKind::model, "nodes_modes names a mode outside 0 to 6");
    const Ref modes = present.size() > 1 ? taken(whole(modes_), at) : Emitter::kAbsent;
    constexpr std::string_view compare[] = {"LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal"};
    Ref result = Emitter::kAbsent;
    for (const std::int64_t mode : present) {
      const Ref one = mode == member      ? among(value, at)
                      : mode == not_equal ? emitter_.one("Not", {emitter_.one("Equal", {value, split})})
                                          : emitter_.one(compare[mode], {value, split});
      result =
          result == Emitter::kAbsent ? one : emitter_.one("Where", {emitter_.one("Equal", {modes, whole({mode})}), one, result});
    }
    return result;
  }

  // Return whether the value is in the node's set. The sets are concatenated, each followed by a NaN.
  Ref among(Ref value, Ref at) {
    const std::vector<double> members = numbers("membership_values");
    std::vector<std::vector<double>> sets(1);
    for (const double one : members) {
      if (one == one)
        sets.back().push_back(one);
      else
        sets.emplace_back();
    }
    sets.pop_back();
    const auto nodes =
        static_cast<std::size_t>(std::count(modes_.begin(), modes_.begin() + static_cast<std::ptrdiff_t>(count_), member));
    if (sets.size() != nodes)
      throw Error(ErrorKind::model,
                  "membership_values holds " + std::to_string(sets.size()) + " sets for " + std::to_string(nodes) + " nodes");
    std::size_t width = 1;
    for (const auto& set : sets) width = std::max(width, set.size());
    check_table(static_cast<std::int64_t>(modes_.size()), static_cast<std::int64_t>(width));
    std::vector<double> table(modes_.size() * width, std::numeric_limits<double>::quiet_NaN());
    auto set = sets.begin();
    for (std::size_t i = 0; i < count_; ++i)
      if (modes_[i] == member) std::copy(set->begin(), set->end(), table.begin() + static_cast<std::ptrdiff_t>(i * width)), ++set;
    const Ref own = taken(floating(table, {static_cast<std::int64_t>(modes_.size()), static_cast<std::int64_t>(width)}), at);
    const Ref apart = emitter_.one("Unsqueeze", {value}, {{"axes", Dims{2}}});
    return emitter_.one("ReduceMax", {emitter_.one("Equal", {apart, own})}, {{"axes", Dims{2}}, {"keepdims", std::int64_t{0}}});
  }

  Ref or_missing(Ref condition, Ref value, Ref at) {
    const auto tracks = attributes_.get_ints("nodes_missing_value_tracks_true");
    if (!tracks || std::all_of(tracks->begin(), tracks->end(), [](std::int64_t track) { return track == 0; })) return condition;
    if (tracks->size() != count_) throw Error(ErrorKind::model, "nodes_missing_value_tracks_true has another number of nodes");
    Dims all = *tracks;
    all.resize(modes_.size(), 0);
    const Ref follows = emitter_.one("Cast", {taken(whole(all), at)}, {{"to", std::string("bool")}});
    return emitter_.one("Or", {condition, emitter_.one("And", {emitter_.one("IsNaN", {value}), follows})});
  }

  Emitter& emitter_;
  Ref x_;
  const Attributes& attributes_;
  DType dtype_;
  std::size_t count_ = 0;
  std::vector<double> splits_, weights_;
  Dims features_, modes_, leaf_targets_, yes_, no_, roots_;
};

}  // namespace

// Input (rows, features); output (rows, targets) in its dtype.
std::vector<Ref> decompose_tree_ensemble(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand x = emitter.operand(inputs[0]);
  if (x.shape.size() != 2 || !is_floating(x.dtype))
    throw Error(ErrorKind::shape, "TreeEnsemble takes floating (rows, features), not " + std::string(dtype_name(x.dtype)) +
                                      " of shape " + to_string(x.shape));
  enum : std::int64_t { average, sum, least, greatest };
  const std::int64_t aggregate = attributes.get_int("aggregate_function", sum), after = attributes.get_int("post_transform", 0);
  if (aggregate < average || aggregate > greatest)
    throw Error(ErrorKind::model, "aggregate_function " + std::to_string(aggregate) + "; known are 0 to 3");
  if (after < 0 || after > 2)
    throw Error(ErrorKind::unsupported,
                "post_transform " + std::to_string(after) + "; known are 0 (none), 1 (softmax) and 2 (logistic)");
  Trees trees(emitter, inputs[0], attributes);
  const double limit =
      x.dtype == DType::f64 ? std::numeric_limits<double>::max() : static_cast<double>(std::numeric_limits<float>::max());
  const Ref leaf = trees.leaves();
  const Ref added = emitter.one("Gather",
                                {trees.table(aggregate == least      ? limit
                                             : aggregate == greatest ? -limit
                                                                     : 0),
                                 leaf},
                                {{"axis", std::int64_t{0}}});
  const std::string_view reduce = aggregate == least      ? "ReduceMin"
                                  : aggregate == greatest ? "ReduceMax"
                                  : aggregate == sum      ? "ReduceSum"
                                                          : "ReduceMean";
  const Ref result = emitter.one(reduce, {added}, {{"axes", Dims{1}}, {"keepdims", std::int64_t{0}}});
  if (after == 0) return {result};
  return {emitter.one(after == 1 ? "Softmax" : "Sigmoid", {result})};
}

}  // namespace walle

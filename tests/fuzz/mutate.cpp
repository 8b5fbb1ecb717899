#include "mutate.h"

#include <algorithm>
#include <limits>

#include "operators/op.h"

namespace fuzz {

namespace {

constexpr std::uint32_t kAbsent = 0xFFFFFFFF;

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }
bool chance(Random& random, unsigned one_in) { return random() % one_in == 0; }

template <class T>
T& any(Random& random, std::vector<T>& list) {
  return list[below(random, list.size())];
}

std::int64_t number(Random& random) {
  constexpr std::int64_t kTelling[] = {0,    1,         -1,        2,         -2,        3,         4,
                                       7,    8,         16,        17,        63,        64,        65,
                                       255,  256,       1 << 16,   1 << 20,   1LL << 31, 1LL << 32, -(1LL << 31),
                                       1000, INT64_MAX, INT64_MIN, 1LL << 40, 1LL << 47, 1LL << 62, INT64_MIN + 1};
  if (chance(random, 3)) return kTelling[below(random, std::size(kTelling))];
  return static_cast<std::int64_t>(below(random, 12)) - 4;
}

double real(Random& random) {
  constexpr double kTelling[] = {0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, 1e300, -1e300};
  switch (below(random, 12)) {
    case 0: return std::numeric_limits<double>::infinity();
    case 1: return std::numeric_limits<double>::quiet_NaN();
    default: return kTelling[below(random, std::size(kTelling))];
  }
}

void change(Random& random, std::int64_t& value) {
  if (chance(random, 2))
    value = number(random);
  else  // wraps on overflow
    value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + random() % 5 - 2);
}

template <class T, class F>
void change_list(Random& random, std::vector<T>& list, F&& fresh) {
  switch (below(random, 4)) {
    case 0:
      if (list.size() < 64) list.insert(list.begin() + static_cast<std::ptrdiff_t>(below(random, list.size() + 1)), fresh());
      return;
    case 1:
      if (!list.empty()) list.erase(list.begin() + static_cast<std::ptrdiff_t>(below(random, list.size())));
      return;
    case 2:
      if (list.size() > 1) std::swap(any(random, list), any(random, list));
      return;
    default:
      if (!list.empty()) any(random, list) = fresh();
  }
}

// Selects a graph of the model: its main graph, or one of its subgraphs, which is copied first.
GraphForm& any_graph(Random& random, GraphForm& graph) {
  std::vector<AttributeForm*> bodies;
  for (NodeForm& node : graph.nodes)
    for (AttributeForm& attribute : node.attributes)
      if (attribute.type == 5 && attribute.graph) bodies.push_back(&attribute);
  if (bodies.empty() || chance(random, 2)) return graph;
  AttributeForm& body = *any(random, bodies);
  auto copy = std::make_shared<GraphForm>(*body.graph);
  body.graph = copy;
  return any_graph(random, *copy);
}

std::string operator_name(Random& random) {
  const auto all = walle::operators();
  return std::string(all[below(random, all.size())].name);
}

// Attribute names and values that operators read; the seeds contain the others.
AttributeForm attribute_like(Random& random) {
  constexpr const char* kNames[] = {
      "axis",      "axes",         "shape",      "k",         "keepdims",  "pads",         "strides",        "dilations",
      "group",     "kernel_shape", "perm",       "split",     "starts",    "ends",         "steps",          "to",
      "mode",      "blocksize",    "batch_dims", "ceil_mode", "size",      "plain_stride", "indexed_stride", "index_stride",
      "offsets",   "weight",       "extent",     "offset",    "allowzero", "repeats",      "auto_pad",       "num_outputs",
      "reduction", "hidden_size",  "exclusive"};
  constexpr const char* kWords[] = {"SAME_UPPER", "float32", "int8",      "bool",          "float16", "cubic",
                                    "linear",     "add",     "max",       "LSTM",          "GRU",     "wrap",
                                    "reflect",    "edge",    "ij,jk->ik", "bidirectional", "reverse"};
  AttributeForm attribute;
  attribute.name = kNames[below(random, std::size(kNames))];
  constexpr std::uint8_t kTypes[] = {0, 0, 1, 2, 3, 3, 3, 4, 6};
  attribute.type = kTypes[below(random, std::size(kTypes))];
  attribute.number = number(random);
  attribute.real = real(random);
  attribute.text = kWords[below(random, std::size(kWords))];
  for (std::size_t i = below(random, 5); i > 0; --i) {
    attribute.numbers.push_back(number(random));
    attribute.reals.push_back(real(random));
    attribute.texts.emplace_back(kWords[below(random, std::size(kWords))]);
  }
  return attribute;
}

void change_attribute(Random& random, AttributeForm& attribute) {
  switch (attribute.type) {
    case 0: change(random, attribute.number); break;
    case 1: attribute.real = real(random); break;
    case 2: attribute.text = attribute_like(random).text; break;
    case 3:
      if (!attribute.numbers.empty() && chance(random, 2))
        change(random, any(random, attribute.numbers));
      else
        change_list(random, attribute.numbers, [&] { return number(random); });
      break;
    case 4: change_list(random, attribute.reals, [&] { return real(random); }); break;
    case 6: change_list(random, attribute.texts, [&] { return attribute_like(random).text; }); break;
    default: break;
  }
}

std::uint32_t any_value(Random& random, const GraphForm& graph) {
  return chance(random, 12) ? kAbsent : static_cast<std::uint32_t>(below(random, graph.values.size()));
}

constexpr std::uint64_t kItem[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Resizes a constant's data to what its shape and type need, with random bytes where there are too few.
void fit(Random& random, ModelForm& model, ValueForm& value) {
  std::uint64_t count = kItem[std::min<std::size_t>(value.dtype, std::size(kItem) - 1)];
  for (const std::int64_t dim : value.dims)
    if (dim < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(dim), &count) || count > 4096) return;
  value.size = count;
  if (value.offset <= model.data.size() && count <= model.data.size() - value.offset) return;
  model.data.resize((model.data.size() + 63) / 64 * 64, 0);
  value.offset = model.data.size();
  for (std::uint64_t i = 0; i < (count + 63) / 64 * 64; ++i)
    model.data.push_back(chance(random, 3) ? static_cast<std::uint8_t>(random() % 4) : 0);
}

void change_value(Random& random, ModelForm& model, ValueForm& value) {
  switch (below(random, 6)) {
    case 0: value.kind = static_cast<std::uint8_t>(below(random, 5)); break;
    case 1:
      value.dtype = static_cast<std::uint8_t>(chance(random, 20) ? random() : below(random, 23));
      if (value.kind == 1) fit(random, model, value);
      break;
    case 2: value.rank = chance(random, 8) ? 255 : 0; break;
    case 3:
      if (value.kind == 1 && value.offset < model.data.size() && value.size > 0) {  // one element of its data
        const std::uint64_t item = kItem[std::min<std::size_t>(value.dtype, std::size(kItem) - 1)];
        const std::uint64_t at = value.offset + below(random, std::max<std::uint64_t>(value.size / item, 1)) * item;
        const std::int64_t fresh = number(random);
        for (std::uint64_t i = 0; i < item && at + i < model.data.size(); ++i)
          model.data[at + i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(fresh) >> 8 * i);
      }
      break;
    default:
      if (!value.dims.empty() && chance(random, 2))
        change(random, any(random, value.dims));
      else
        change_list(random, value.dims, [&] { return number(random); });
      if (value.kind == 1 && !chance(random, 10)) fit(random, model, value);
  }
}

// Adds a node of a random operator that reads existing values; its result becomes an output.
void add_node(Random& random, GraphForm& graph, NodeForm node) {
  if (graph.nodes.size() > 64 || graph.values.size() > 256) return;
  if (node.op.empty()) {
    const auto all = walle::operators();
    const walle::OpDef& op = all[below(random, all.size())];
    node.op = op.name;
    const auto most = static_cast<std::size_t>(std::min(op.max_inputs, op.min_inputs + 3));
    const auto count =
        static_cast<std::size_t>(op.min_inputs) + below(random, most - static_cast<std::size_t>(op.min_inputs) + 1);
    node.inputs.resize(count);
    for (std::size_t i = below(random, 4); i > 0; --i) {
      node.attributes.push_back(attribute_like(random));
      if (!op.attributes.empty() && !chance(random, 10))
        node.attributes.back().name = op.attributes[below(random, op.attributes.size())];
    }
  }
  for (std::uint32_t& input : node.inputs)
    if (input >= graph.values.size() || chance(random, 2)) input = any_value(random, graph);
  const std::size_t outputs = std::max<std::size_t>(node.outputs.size(), 1);
  node.outputs.clear();
  for (std::size_t i = 0; i < outputs && i < 8; ++i) {
    const auto at = static_cast<std::uint32_t>(graph.values.size());
    ValueForm result;
    result.name = "v" + std::to_string(at) + "_" + std::to_string(random() % 1000);
    graph.values.push_back(result);
    node.outputs.push_back(at);
    if (chance(random, 2)) graph.outputs.emplace_back(result.name, at);
  }
  graph.nodes.push_back(std::move(node));
}

void change_node(Random& random, NodeForm& node, const GraphForm& graph) {
  switch (below(random, 8)) {
    case 0: node.op = operator_name(random); break;
    case 1:
      if (!node.inputs.empty()) any(random, node.inputs) = any_value(random, graph);
      break;
    case 2: change_list(random, node.inputs, [&] { return any_value(random, graph); }); break;
    case 3: node.attributes.push_back(attribute_like(random)); break;
    case 4:
      if (!node.attributes.empty())
        node.attributes.erase(node.attributes.begin() + static_cast<std::ptrdiff_t>(below(random, node.attributes.size())));
      break;
    default:
      if (!node.attributes.empty()) change_attribute(random, any(random, node.attributes));
  }
}

}  // namespace

void mutate(ModelForm& model, const ModelForm* other, Random& random) {
  GraphForm& graph = any_graph(random, model.graph);
  switch (below(random, 10)) {
    case 0:
    case 1:
    case 2:
      if (!graph.values.empty()) change_value(random, model, any(random, graph.values));
      return;
    case 3: return add_node(random, graph, {});
    case 4:  // a node of the other model with its attributes
      if (other != nullptr && !other->graph.nodes.empty())
        add_node(random, graph, other->graph.nodes[below(random, other->graph.nodes.size())]);
      return;
    case 5:
      if (!graph.outputs.empty()) any(random, graph.outputs).second = any_value(random, graph);
      return;
    default:
      if (!graph.nodes.empty()) change_node(random, any(random, graph.nodes), graph);
  }
}

}  // namespace fuzz

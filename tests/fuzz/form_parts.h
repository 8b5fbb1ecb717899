// Short constructors for the parts of a model.
#pragma once
#include "model_form.h"

namespace fuzz {

enum Kind : std::uint8_t { kResult, kConstant, kInput, kOuter, kObject };
inline constexpr std::uint32_t kLeftOut = 0xFFFFFFFF;

inline AttributeForm number(const char* name, std::int64_t value) {
  AttributeForm attribute;
  attribute.name = name;
  attribute.number = value;
  return attribute;
}
inline AttributeForm numbers(const std::string& name, std::vector<std::int64_t> values) {
  AttributeForm attribute;
  attribute.name = name;
  attribute.type = 3;
  attribute.numbers = std::move(values);
  return attribute;
}
inline AttributeForm text(const char* name, const char* value) {
  AttributeForm attribute;
  attribute.name = name;
  attribute.type = 2;
  attribute.text = value;
  return attribute;
}
inline AttributeForm body(const char* name, GraphForm graph) {
  AttributeForm attribute;
  attribute.name = name;
  attribute.type = 5;
  attribute.graph = std::make_shared<GraphForm>(std::move(graph));
  return attribute;
}

inline ValueForm value(std::string name, std::uint8_t kind, std::uint8_t dtype = 0, std::vector<std::int64_t> dims = {}) {
  ValueForm form;
  form.name = std::move(name);
  form.kind = kind;
  form.dtype = dtype;
  form.dims = std::move(dims);
  return form;
}
inline ValueForm outer(std::string name, std::uint32_t around) {
  ValueForm form = value(std::move(name), kOuter);
  form.outer = around;
  return form;
}

// Returns a constant and appends its elements to the model's data.
template <class T>
ValueForm constant(ModelForm& model, std::string name, std::uint8_t dtype, std::vector<std::int64_t> dims,
                   const std::vector<T>& elements) {
  ValueForm form = value(std::move(name), kConstant, dtype, std::move(dims));
  form.offset = model.data.size();
  form.size = elements.size() * sizeof(T);
  const auto* raw = reinterpret_cast<const std::uint8_t*>(elements.data());
  model.data.insert(model.data.end(), raw, raw + form.size);
  model.data.resize((model.data.size() + 63) / 64 * 64, 0);
  return form;
}

// Returns a model with one node that reads all of `inputs`; its results are the model's outputs. `data` holds the constants'
// elements.
inline ModelForm one_node(const char* op, std::vector<ValueForm> inputs, std::vector<AttributeForm> attributes,
                          std::uint32_t outputs = 1, Bytes data = {}) {
  ModelForm model;
  model.data = std::move(data);
  NodeForm node{op, "node", {}, {}, std::move(attributes)};
  for (std::uint32_t i = 0; i < inputs.size(); ++i) node.inputs.push_back(i);
  model.graph.values = std::move(inputs);
  for (std::uint32_t i = 0; i < outputs; ++i) {
    const std::string name = "y" + std::to_string(i);
    node.outputs.push_back(static_cast<std::uint32_t>(model.graph.values.size()));
    model.graph.outputs.emplace_back(name, node.outputs.back());
    model.graph.values.push_back(value(name, kResult));
  }
  model.graph.nodes = {std::move(node)};
  return model;
}

}  // namespace fuzz

// A parsed `.walle` file in a form that a mutator can change: names, numbers, lists, subgraphs. It is independent of the engine's
// reader, so that it cannot share its bugs; graph/load.h describes the layout.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fuzz {

using Bytes = std::vector<std::uint8_t>;

struct GraphForm;

struct ValueForm {
  std::string name;
  std::uint8_t kind = 0, dtype = 0, rank = 0;
  std::vector<std::int64_t> dims;
  std::uint64_t offset = 0, size = 0;
  std::uint32_t outer = 0;
};

struct AttributeForm {
  std::string name;
  std::uint8_t type = 0;
  std::int64_t number = 0;
  double real = 0;
  std::string text;
  std::vector<std::int64_t> numbers;
  std::vector<double> reals;
  std::vector<std::string> texts;
  std::shared_ptr<const GraphForm> graph;
};

struct NodeForm {
  std::string op, name;
  std::vector<std::uint32_t> inputs, outputs;
  std::vector<AttributeForm> attributes;
};

struct GraphForm {
  std::string name;
  std::vector<ValueForm> values;
  std::vector<NodeForm> nodes;
  std::vector<std::pair<std::string, std::uint32_t>> outputs;
};

struct ModelForm {
  GraphForm graph;
  Bytes data;
};

// Parses a file; returns nothing if the bytes do not have the layout of a model. The contents are not checked.
std::optional<ModelForm> parse(std::span<const std::uint8_t> file);
// Writes a model with a valid header and valid checksums.
Bytes write(const ModelForm& model);
// Sets valid checksums, so that the reader goes past them.
void seal(Bytes& file);

}  // namespace fuzz

// A `.walle` file taken apart into what a mutator can change: names, numbers, lists, subgraphs. Independent of the engine's
// reader, whose faults it must not share; the layout is graph/load.h's.
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

// Nothing where the bytes are not laid out as a model is; whether they make sense does not matter.
std::optional<ModelForm> parse(std::span<const std::uint8_t> file);
// With a right header and right checksums.
Bytes write(const ModelForm& model);
// Makes the checksums right, so that the reader looks further.
void seal(Bytes& file);

}  // namespace fuzz

#include "model_form.h"

#include <cstring>

#include "core/crc32.h"
#include "graph/load.h"

namespace fuzz {

namespace {

constexpr std::size_t kHeader = 64;
constexpr std::uint8_t kMagic[] = {'W', 'A', 'L', 'L', 'E', '\r', '\n', 0x1a};

// Reads values from the front; `sound` is false after the first one that is missing.
struct Source {
  std::span<const std::uint8_t> left;
  bool sound = true;

  template <class T>
  T number() {
    T value{};
    if (left.size() < sizeof(T)) {
      sound = false;
      return value;
    }
    std::memcpy(&value, left.data(), sizeof(T));
    left = left.subspan(sizeof(T));
    return value;
  }
  std::string text() {
    const auto size = number<std::uint32_t>();
    if (size > left.size()) {
      sound = false;
      return {};
    }
    std::string value(reinterpret_cast<const char*>(left.data()), size);
    left = left.subspan(size);
    return value;
  }
  template <class F>
  void repeat(F&& f) {
    for (auto count = number<std::uint32_t>(); count > 0 && sound; --count) f();
  }
};

struct Sink {
  Bytes bytes;

  template <class T>
  void number(T value) {
    const auto* raw = reinterpret_cast<const std::uint8_t*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
  }
  void text(const std::string& value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes.insert(bytes.end(), value.begin(), value.end());
  }
  template <class T>
  void count(const T& list) {
    number(static_cast<std::uint32_t>(list.size()));
  }
};

GraphForm read_graph(Source& in, int depth);

ValueForm read_value(Source& in) {
  ValueForm value;
  value.name = in.text();
  value.kind = in.number<std::uint8_t>();
  if (value.kind == 3) value.outer = in.number<std::uint32_t>();
  if (value.kind != 1 && value.kind != 2) return value;
  value.dtype = in.number<std::uint8_t>();
  value.rank = in.number<std::uint8_t>();
  if (value.rank == 255 && value.kind == 2) return value;
  for (int i = 0; i < value.rank && in.sound; ++i) value.dims.push_back(in.number<std::int64_t>());
  if (value.kind == 2) return value;
  value.offset = in.number<std::uint64_t>();
  value.size = in.number<std::uint64_t>();
  return value;
}

AttributeForm read_attribute(Source& in, int depth) {
  AttributeForm attribute;
  attribute.name = in.text();
  attribute.type = in.number<std::uint8_t>();
  switch (attribute.type) {
    case 0: attribute.number = in.number<std::int64_t>(); break;
    case 1: attribute.real = in.number<double>(); break;
    case 2: attribute.text = in.text(); break;
    case 3: in.repeat([&] { attribute.numbers.push_back(in.number<std::int64_t>()); }); break;
    case 4: in.repeat([&] { attribute.reals.push_back(in.number<double>()); }); break;
    case 5: attribute.graph = std::make_shared<GraphForm>(read_graph(in, depth + 1)); break;
    case 6: in.repeat([&] { attribute.texts.push_back(in.text()); }); break;
    default: in.sound = false;
  }
  return attribute;
}

GraphForm read_graph(Source& in, int depth) {
  GraphForm graph;
  if (depth > 20) in.sound = false;
  if (!in.sound) return graph;
  graph.name = in.text();
  in.repeat([&] { graph.values.push_back(read_value(in)); });
  in.repeat([&] {
    NodeForm node;
    node.op = in.text();
    node.name = in.text();
    in.repeat([&] { node.inputs.push_back(in.number<std::uint32_t>()); });
    in.repeat([&] { node.outputs.push_back(in.number<std::uint32_t>()); });
    in.repeat([&] { node.attributes.push_back(read_attribute(in, depth)); });
    graph.nodes.push_back(std::move(node));
  });
  in.repeat([&] {
    std::string name = in.text();
    graph.outputs.emplace_back(std::move(name), in.number<std::uint32_t>());
  });
  return graph;
}

void write_graph(Sink& out, const GraphForm& graph) {
  out.text(graph.name);
  out.count(graph.values);
  for (const ValueForm& value : graph.values) {
    out.text(value.name);
    out.number(value.kind);
    if (value.kind == 3) out.number(value.outer);
    if (value.kind != 1 && value.kind != 2) continue;
    const bool any = value.rank == 255 && value.kind == 2;
    out.number(value.dtype);
    out.number(any ? value.rank : static_cast<std::uint8_t>(value.dims.size()));
    for (std::size_t i = 0; i < value.dims.size() && !any; ++i) out.number(value.dims[i]);
    if (value.kind == 2) continue;
    out.number(value.offset);
    out.number(value.size);
  }
  out.count(graph.nodes);
  for (const NodeForm& node : graph.nodes) {
    out.text(node.op);
    out.text(node.name);
    out.count(node.inputs);
    for (const std::uint32_t value : node.inputs) out.number(value);
    out.count(node.outputs);
    for (const std::uint32_t value : node.outputs) out.number(value);
    out.count(node.attributes);
    for (const AttributeForm& attribute : node.attributes) {
      out.text(attribute.name);
      out.number(attribute.type);
      switch (attribute.type) {
        case 0: out.number(attribute.number); break;
        case 1: out.number(attribute.real); break;
        case 2: out.text(attribute.text); break;
        case 3:
          out.count(attribute.numbers);
          for (const std::int64_t number : attribute.numbers) out.number(number);
          break;
        case 4:
          out.count(attribute.reals);
          for (const double number : attribute.reals) out.number(number);
          break;
        case 5: write_graph(out, attribute.graph ? *attribute.graph : GraphForm{}); break;
        default:
          out.count(attribute.texts);
          for (const std::string& text : attribute.texts) out.text(text);
      }
    }
  }
  out.count(graph.outputs);
  for (const auto& [name, value] : graph.outputs) {
    out.text(name);
    out.number(value);
  }
}

std::uint32_t crc(const std::uint8_t* data, std::size_t size, std::uint32_t before = 0) {
  return walle::crc32(reinterpret_cast<const std::byte*>(data), size, before);
}

}  // namespace

std::optional<ModelForm> parse(std::span<const std::uint8_t> file) {
  if (file.size() < kHeader) return std::nullopt;
  std::uint64_t graph_size, data_offset;
  std::memcpy(&graph_size, &file[32], 8);
  std::memcpy(&data_offset, &file[40], 8);
  if (graph_size > file.size() - kHeader || data_offset > file.size() || data_offset < kHeader) return std::nullopt;
  Source in{file.subspan(kHeader, graph_size)};
  ModelForm model{read_graph(in, 0), Bytes(file.begin() + static_cast<std::ptrdiff_t>(data_offset), file.end())};
  if (!in.sound) return std::nullopt;
  return model;
}

Bytes write(const ModelForm& model) {
  Sink graph, file;
  write_graph(graph, model.graph);
  const std::uint64_t data_offset = (kHeader + graph.bytes.size() + 63) / 64 * 64;
  file.bytes.assign(std::begin(kMagic), std::end(kMagic));
  file.number(walle::kModelVersion);
  file.number(std::uint32_t{0});
  file.number(std::uint64_t{data_offset + model.data.size()});
  file.number(std::uint64_t{kHeader});
  file.number(std::uint64_t{graph.bytes.size()});
  file.number(data_offset);
  file.number(std::uint64_t{model.data.size()});
  file.number(std::uint64_t{0});  // the checksums
  file.bytes.insert(file.bytes.end(), graph.bytes.begin(), graph.bytes.end());
  file.bytes.resize(data_offset, 0);
  file.bytes.insert(file.bytes.end(), model.data.begin(), model.data.end());
  seal(file.bytes);
  return file.bytes;
}

void seal(Bytes& file) {
  if (file.size() < kHeader) return;
  std::uint64_t data_offset;
  std::memcpy(&data_offset, &file[40], 8);
  if (data_offset < kHeader || data_offset > file.size()) return;
  const std::uint32_t data_crc = crc(file.data() + data_offset, file.size() - data_offset);
  std::memcpy(&file[56], &data_crc, 4);
  const std::uint32_t head_crc = crc(file.data() + kHeader, data_offset - kHeader, crc(file.data(), 60));
  std::memcpy(&file[60], &head_crc, 4);
}

}  // namespace fuzz

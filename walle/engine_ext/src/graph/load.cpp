#include "graph/load.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "core/crc32.h"

namespace walle {

namespace {

constexpr char kMagic[] = "WALLE\r\n\x1a";
constexpr std::size_t kHeader = 64;
constexpr std::uint32_t kAbsent = 0xFFFFFFFF;
constexpr int kMaxFileRank = 32;
constexpr int kAny = 255;        // a dtype or a rank
constexpr int kMaxNesting = 16;  // levels of subgraphs
// Limits far above any model that runs; planning takes time that grows with the square of some of them.
constexpr std::size_t kMaxNodes = 1 << 16, kMaxValues = 1 << 20;  // limits of a file, its subgraphs included
constexpr std::size_t kMaxAttributes = 256;                       // limit of a node
constexpr std::size_t kMaxName = 1 << 12, kMaxText = 1 << 20;     // bytes

[[noreturn]] void broken(const std::string& what) { throw Error(ErrorKind::model, "not a sound .walle file: " + what); }

// Whether these bytes are UTF-8 as Python decodes it: no overlong forms, surrogates, or values beyond U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    if (lead >= 0x80) more = lead < 0xC2 ? 4 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : 4;
    if (more == 4 || more > text.size() - i - 1) return false;
    std::uint32_t code = more == 0 ? lead : lead & (0x3Fu >> more);
    for (std::size_t j = 1; j <= more; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000)) return false;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += more + 1;
  }
  return true;
}

// Reads numbers and texts from the front of a section, never beyond its end.
class Reader {
 public:
  Reader(const std::byte* data, std::size_t size) : data_(data), left_(size) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string text(std::size_t most = kMaxName) {
    const auto size = number<std::uint32_t>();
    if (size > most) broken("a text of " + std::to_string(size) + " bytes; at most " + std::to_string(most) + " are read");
    std::string value(reinterpret_cast<const char*>(take(size)), size);
    if (!is_utf8(value)) broken("a name is not UTF-8");
    return value;
  }
  // How many items follow, each of at least `least` bytes: a count that cannot fit is refused before anything is allocated for
  // it.
  std::uint32_t count(std::size_t least) {
    const auto items = number<std::uint32_t>();
    if (items > left_ / least) broken("a count of " + std::to_string(items) + " with " + std::to_string(left_) + " bytes left");
    return items;
  }
  template <class T>
  std::vector<T> numbers(std::size_t items) {
    if (items > left_ / sizeof(T))
      broken("a list of " + std::to_string(items) + " with " + std::to_string(left_) + " bytes left");
    std::vector<T> values(items);
    if (items > 0) std::memcpy(values.data(), take(items * sizeof(T)), items * sizeof(T));
    return values;
  }
  std::size_t left() const noexcept { return left_; }

  // The numbers of nodes and values read so far.
  std::size_t node_count = 0, value_count = 0;

 private:
  const std::byte* take(std::size_t size) {
    if (size > left_) broken("the graph section ends in the middle of something");
    const std::byte* at = data_;
    data_ += size;
    left_ -= size;
    return at;
  }

  const std::byte* data_;
  std::size_t left_;
};

struct Sections {
  Reader graph;
  std::size_t data_offset, data_size;
};

Sections check_header(const std::byte* data, std::size_t size) {
  if (size < kHeader) broken(std::to_string(size) + " bytes are shorter than its header");
  if (std::memcmp(data, kMagic, 8) != 0)
    broken("it begins with other bytes; an ONNX model is converted with: walle model convert");
  const auto u32 = [data](std::size_t at) {
    std::uint32_t v;
    std::memcpy(&v, data + at, 4);
    return v;
  };
  const auto u64 = [data](std::size_t at) {
    std::uint64_t v;
    std::memcpy(&v, data + at, 8);
    return v;
  };
  if (u32(8) != kModelVersion)
    throw Error(ErrorKind::model, "the .walle file has version " + std::to_string(u32(8)) + ", this engine reads " +
                                      std::to_string(kModelVersion) + "; convert the model again");
  if (u32(12) != 0) broken("unknown flags");
  if (u64(16) != size) broken("it says " + std::to_string(u64(16)) + " bytes and has " + std::to_string(size));
  const std::uint64_t graph_size = u64(32), data_offset = u64(40), data_size = u64(48);
  if (u64(24) != kHeader || graph_size > size - kHeader) broken("its graph section lies outside");
  if (data_offset != (kHeader + graph_size + 63) / 64 * 64 || data_offset > size || data_size != size - data_offset)
    broken("its data section lies outside");
  if (crc32(data + kHeader, data_offset - kHeader, crc32(data, 60)) != u32(60)) broken("the checksum of its graph is wrong");
  if (crc32(data + data_offset, data_size) != u32(56)) broken("the checksum of its tensors is wrong");
  return {Reader(data + kHeader, graph_size), data_offset, data_size};
}

// `around`: how many values the graph around has; -1 in the model's own graph.
Value read_value(Reader& reader, const std::shared_ptr<Storage>& storage, const Sections& sections, std::int64_t around) {
  Value value;
  value.name = reader.text();
  const auto kind = reader.number<std::uint8_t>();
  if (kind > 4) broken("'" + value.name + "' is of unknown kind " + std::to_string(kind));
  value.kind = static_cast<ValueKind>(kind);
  if (value.kind == ValueKind::result || value.kind == ValueKind::object) return value;
  if (value.kind == ValueKind::outer) {
    const auto outer = reader.number<std::uint32_t>();
    if (outer >= around)
      broken("'" + value.name + "' takes value " + std::to_string(outer) + " of the graph around, which is not there");
    value.outer = static_cast<int>(outer);
    return value;
  }
  const auto dtype = reader.number<std::uint8_t>();
  value.any_dtype = value.kind == ValueKind::input && dtype == kAny;
  if (dtype >= kModelDTypeCount && !value.any_dtype) broken("'" + value.name + "' has unknown dtype " + std::to_string(dtype));
  if (!value.any_dtype) value.dtype = static_cast<DType>(dtype);
  const auto rank = reader.number<std::uint8_t>();
  value.any_rank = value.kind == ValueKind::input && rank == kAny;
  if (value.any_rank) return value;
  if (rank > kMaxFileRank) broken("'" + value.name + "' has " + std::to_string(rank) + " dimensions");
  value.shape = reader.numbers<std::int64_t>(rank);
  Dims known = value.shape;
  for (std::int64_t& dim : known) {
    if (dim == -1 && value.kind == ValueKind::input) dim = 1;
    if (dim < 0) broken("'" + value.name + "' has shape " + to_string(value.shape));
  }
  std::int64_t count = 0, bytes = 0;
  try {
    count = element_count(known);
  } catch (const Error&) {
    broken("'" + value.name + "' has shape " + to_string(value.shape));
  }
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(item_size(value.dtype)), &bytes))
    broken("'" + value.name + "' is too large");
  if (value.kind == ValueKind::input) return value;
  const auto offset = reader.number<std::uint64_t>(), size = reader.number<std::uint64_t>();
  if (offset % 64 != 0 || offset > sections.data_size || size > sections.data_size - offset ||
      size != static_cast<std::uint64_t>(bytes))
    broken("the data of '" + value.name + "' lies outside or does not fit its shape " + to_string(value.shape));
  if (value.dtype == DType::b8)
    for (std::uint64_t i = 0; i < size; ++i)
      if (static_cast<std::uint8_t>(storage->data()[sections.data_offset + offset + i]) > 1)
        broken("'" + value.name + "' holds a bool that is neither 0 nor 1");
  value.constant = Tensor(storage, value.dtype, value.shape, contiguous_strides(value.shape),
                          static_cast<std::int64_t>((sections.data_offset + offset) / item_size(value.dtype)));
  return value;
}

std::vector<int> read_values(Reader& reader, std::size_t values, bool may_be_absent) {
  std::vector<int> result;
  for (const std::uint32_t number : reader.numbers<std::uint32_t>(reader.count(4))) {
    if (number == kAbsent && may_be_absent)
      result.push_back(-1);
    else if (number < values)
      result.push_back(static_cast<int>(number));
    else
      broken("a node names value " + std::to_string(number) + " of " + std::to_string(values));
  }
  return result;
}

Attribute read_attribute(Reader& reader, std::uint8_t type) {
  switch (type) {
    case 0: return reader.number<std::int64_t>();
    case 1: return reader.number<double>();
    case 2: return reader.text(kMaxText);
    case 3: return reader.numbers<std::int64_t>(reader.count(8));
    case 4: return reader.numbers<double>(reader.count(8));
    case 6: {
      Texts texts(reader.count(4));
      for (std::string& text : texts) text = reader.text(kMaxText);
      return texts;
    }
    default: broken("an attribute is of unknown type " + std::to_string(type));
  }
}

std::shared_ptr<const Graph> read_graph(Reader& reader, const std::shared_ptr<Storage>& storage, const Sections& sections,
                                        std::int64_t around, int depth);

Node read_node(Reader& reader, const std::shared_ptr<Storage>& storage, const Sections& sections, std::size_t values, int depth) {
  Node node;
  const std::string op = reader.text();
  node.name = reader.text();
  node.op = find_operator(op);
  if (node.op == nullptr) throw Error(ErrorKind::unsupported, "node '" + node.name + "': operator '" + op + "' is unknown");
  node.inputs = read_values(reader, values, true);
  node.outputs = read_values(reader, values, false);
  check(node);
  const std::uint32_t attributes = reader.count(6);
  if (attributes > kMaxAttributes) broken("node '" + node.name + "' has " + std::to_string(attributes) + " attributes");
  for (std::uint32_t i = 0; i < attributes; ++i) {
    std::string key = reader.text();
    bool twice = node.attributes.has(key);
    for (const auto& [other, graph] : node.graphs) twice = twice || other == key;
    if (twice) broken("node '" + node.name + "' has attribute '" + key + "' twice");
    const auto type = reader.number<std::uint8_t>();
    check_known(*node.op, key, node.name);
    if (type == 5 && node.op->as<ControlFlow>() == nullptr && node.op->as<SequenceRule>() == nullptr)
      throw Error(ErrorKind::model,
                  "node '" + node.name + "' (" + op + "): attribute '" + key + "' is a subgraph; it must be a value");
    if (type == 5)
      node.graphs.emplace_back(std::move(key),
                               read_graph(reader, storage, sections, static_cast<std::int64_t>(values), depth + 1));
    else
      node.attributes.set(std::move(key), read_attribute(reader, type));
  }
  return node;
}

std::shared_ptr<const Graph> read_graph(Reader& reader, const std::shared_ptr<Storage>& storage, const Sections& sections,
                                        std::int64_t around, int depth) {
  if (depth > kMaxNesting) broken("its subgraphs are nested more than " + std::to_string(kMaxNesting) + " deep");
  auto graph = std::make_shared<Graph>();
  graph->name = reader.text();
  const std::uint32_t values = reader.count(5);
  if ((reader.value_count += values) > kMaxValues) broken("it has more than " + std::to_string(kMaxValues) + " values");
  std::unordered_set<std::string> names;
  for (std::uint32_t i = 0; i < values; ++i) {
    graph->values.push_back(read_value(reader, storage, sections, around));
    if (!names.insert(graph->values.back().name).second) broken("two values are named '" + graph->values.back().name + "'");
    const ValueKind kind = graph->values.back().kind;
    if (kind == ValueKind::input || kind == ValueKind::object) graph->inputs.push_back(static_cast<int>(i));
  }
  const std::uint32_t nodes = reader.count(20);
  if ((reader.node_count += nodes) > kMaxNodes) broken("it has more than " + std::to_string(kMaxNodes) + " nodes");
  for (std::uint32_t i = 0; i < nodes; ++i) graph->nodes.push_back(read_node(reader, storage, sections, values, depth));
  const std::uint32_t outputs = reader.count(8);
  std::unordered_set<std::string> output_names;
  for (std::uint32_t i = 0; i < outputs; ++i) {
    Output output{reader.text(), 0};
    const auto value = reader.number<std::uint32_t>();
    if (value >= values)
      broken("output '" + output.name + "' names value " + std::to_string(value) + " of " + std::to_string(values));
    output.value = static_cast<int>(value);
    if (!output_names.insert(output.name).second) broken("two outputs are named '" + output.name + "'");
    graph->outputs.push_back(std::move(output));
  }
  if (graph->outputs.empty()) broken("it has no output");
  arrange(*graph);
  return graph;
}

// Unmaps a file.
struct Mapping {
  void* address;
  std::size_t size;
  void operator()() const { ::munmap(address, size); }
};

}  // namespace

std::shared_ptr<const Graph> load_graph(const std::shared_ptr<Storage>& given) {
  std::shared_ptr<Storage> storage = given;
  if (reinterpret_cast<std::uintptr_t>(storage->data()) % Storage::kAlignment != 0) {
    storage = Storage::allocate(given->size_bytes());
    std::memcpy(storage->data(), given->data(), given->size_bytes());
  }
  Sections sections = check_header(storage->data(), storage->size_bytes());
  Reader& reader = sections.graph;
  auto graph = read_graph(reader, storage, sections, -1, 0);
  if (reader.left() != 0) broken(std::to_string(reader.left()) + " bytes follow its graph");
  return graph;
}

std::shared_ptr<const Graph> load_graph(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block; it is refused below
  if (file < 0) throw Error(ErrorKind::model, "cannot open model '" + path + "': " + std::strerror(errno));
  struct ::stat status{};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw Error(ErrorKind::model, "model '" + path + "' is not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  ::close(file);
  if (address == MAP_FAILED) throw Error(ErrorKind::model, "model '" + path + "' is empty or cannot be mapped");
  try {
    return load_graph(Storage::borrow(address, size, false, Mapping{address, size}));
  } catch (const Error& error) {
    throw Error(error.kind(), "model '" + path + "': " + error.what());
  }
}

}  // namespace walle

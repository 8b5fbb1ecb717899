// Tests of the model reader on corrupt files: every byte changed, the file cut at every length, and wrong numbers with valid
// checksums. Only Error may be thrown. Meant for sanitized builds.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/crc32.h"
#include "graph/load.h"
#include "run/session.h"
#include "run/target.h"

using namespace walle;

// A forged shape may request more memory than exists: under the sanitizer too, this must throw std::bad_alloc.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace {

using FileBytes = std::vector<std::uint8_t>;

// Builds a model file with the layout that graph/load.h gives; independent of the writer in Python.
struct Writer {
  FileBytes bytes;
  template <class T>
  Writer& put(T value) {
    const auto* raw = reinterpret_cast<const std::uint8_t*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
    return *this;
  }
  Writer& text(const std::string& value) {
    put(static_cast<std::uint32_t>(value.size()));
    bytes.insert(bytes.end(), value.begin(), value.end());
    return *this;
  }
};

std::uint32_t crc(const std::uint8_t* data, std::size_t size, std::uint32_t before = 0) {
  return crc32(reinterpret_cast<const std::byte*>(data), size, before);
}

void seal(FileBytes& file) {
  std::uint64_t data_offset;
  std::memcpy(&data_offset, &file[40], 8);
  if (data_offset < 64 || data_offset > file.size()) return;
  const std::uint32_t data_crc = crc(file.data() + data_offset, file.size() - data_offset);
  std::memcpy(&file[56], &data_crc, 4);
  const std::uint32_t head_crc = crc(file.data() + 64, data_offset - 64, crc(file.data(), 60));
  std::memcpy(&file[60], &head_crc, 4);
}

FileBytes whole_file(const FileBytes& graph, const FileBytes& data) {
  Writer file;
  const std::uint64_t data_offset = (64 + graph.size() + 63) / 64 * 64;
  file.bytes = {'W', 'A', 'L', 'L', 'E', '\r', '\n', 0x1a};
  file.put(kModelVersion).put(std::uint32_t{0}).put(data_offset + data.size()).put(std::uint64_t{64});
  file.put(std::uint64_t{graph.size()}).put(data_offset).put(std::uint64_t{data.size()}).put(std::uint64_t{0});
  file.bytes.insert(file.bytes.end(), graph.begin(), graph.end());
  file.bytes.resize(data_offset, 0);
  file.bytes.insert(file.bytes.end(), data.begin(), data.end());
  seal(file.bytes);
  return file.bytes;
}

// y = slice(tanh(x + c)), with x open in its first dimension.
FileBytes small_model() {
  Writer graph;
  graph.text("small").put(std::uint32_t{5});
  graph.text("x").put(std::uint8_t{2}).put(std::uint8_t{0}).put(std::uint8_t{2}).put(std::int64_t{-1}).put(std::int64_t{3});
  graph.text("c")
      .put(std::uint8_t{1})
      .put(std::uint8_t{0})
      .put(std::uint8_t{1})
      .put(std::int64_t{3})
      .put(std::uint64_t{0})
      .put(std::uint64_t{12});
  graph.text("s").put(std::uint8_t{0});
  graph.text("t").put(std::uint8_t{0});
  graph.text("y").put(std::uint8_t{0});
  graph.put(std::uint32_t{3});
  graph.text("Add")
      .text("add")
      .put(std::uint32_t{2})
      .put(std::uint32_t{0})
      .put(std::uint32_t{1})
      .put(std::uint32_t{1})
      .put(std::uint32_t{2})
      .put(std::uint32_t{0});
  graph.text("Slice")
      .text("cut")
      .put(std::uint32_t{1})
      .put(std::uint32_t{3})
      .put(std::uint32_t{1})
      .put(std::uint32_t{4})
      .put(std::uint32_t{3});
  graph.text("starts").put(std::uint8_t{3}).put(std::uint32_t{1}).put(std::int64_t{1});
  graph.text("ends").put(std::uint8_t{3}).put(std::uint32_t{1}).put(std::int64_t{3});
  graph.text("axes").put(std::uint8_t{0}).put(std::int64_t{1});
  // After the node that reads it: the loader sorts the nodes.
  graph.text("Tanh")
      .text("tanh")
      .put(std::uint32_t{1})
      .put(std::uint32_t{2})
      .put(std::uint32_t{1})
      .put(std::uint32_t{3})
      .put(std::uint32_t{0});
  graph.put(std::uint32_t{1}).text("y").put(std::uint32_t{4});
  Writer data;
  data.put(1.0f).put(2.0f).put(3.0f);
  data.bytes.resize(64, 0);
  return whole_file(graph.bytes, data.bytes);
}

// Copies exactly the bytes of the file, so that an access out of bounds is detected.
std::shared_ptr<Storage> storage_of(const FileBytes& bytes) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(64, (bytes.size() / 64 + 1) * 64));
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return Storage::borrow(data, bytes.size(), false, [data] { std::free(data); });
}

// Returns true if the model loads and runs, false if it is refused. Any other outcome ends the program.
bool takes(const FileBytes& bytes) {
  try {
    Session session(load_graph(storage_of(bytes)), find_target("auto", 1));
    std::vector<Tensor> inputs;
    for (const int input : session.graph().inputs) {
      const Value& value = session.graph().values[static_cast<std::size_t>(input)];
      Dims shape = value.shape;
      for (auto& dim : shape) dim = dim < 0 ? 2 : dim;
      if (element_count(shape) > 1 << 20) return false;
      inputs.push_back(Tensor::empty(value.dtype, shape));
      std::memset(inputs.back().raw(), 0, static_cast<std::size_t>(inputs.back().size()) * item_size(value.dtype));
    }
    session.run(inputs);
    return true;
  } catch (const Error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

int main() {
  const FileBytes model = small_model();
  CHECK(takes(model));
  CHECK(crc(reinterpret_cast<const std::uint8_t*>("123456789"), 9) == 0xCBF43926u);

  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const int change : {0x01, 0x80, 0xFF}) {
      FileBytes broken = model;
      broken[i] = static_cast<std::uint8_t>(broken[i] ^ change);
      CHECK(!takes(broken));
    }
  }
  for (std::size_t size = 0; size < model.size(); ++size)
    CHECK(!takes(FileBytes(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(size))));
  FileBytes longer = model;
  longer.push_back(0);
  CHECK(!takes(longer));

  // Forged files have valid checksums: every byte of the header and the graph, alone and in pairs, is set to boundary values.
  std::mt19937_64 random(3);
  int taken = 0;
  for (std::size_t i = 8; i < model.size(); ++i) {
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      FileBytes forged = model;
      forged[i] = static_cast<std::uint8_t>(value);
      seal(forged);
      taken += takes(forged);
    }
  }
  for (int round = 0; round < check::rounds(20000); ++round) {
    FileBytes forged = model;
    for (auto changes = check::whole(random, 1, 4); changes > 0; --changes)
      forged[static_cast<std::size_t>(check::whole(random, 8, static_cast<std::int64_t>(model.size()) - 1))] =
          static_cast<std::uint8_t>(random());
    seal(forged);
    taken += takes(forged);
  }
  std::printf("%d forged files were valid models\n", taken);
  CHECK(taken > 0);  // a changed name or weight is valid
  return check::failures != 0;
}

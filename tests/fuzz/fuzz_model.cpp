// The libFuzzer target of the model reader, planner and kernels. Models are mutated by structure (mutate.h), sometimes by bytes;
// checksums are always made valid, because otherwise every input would be refused there.
#include <cstring>

#include "attempt.h"
#include "mutate.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

// Requests for more memory than exists must throw std::bad_alloc, as they do without the sanitizer.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=512:detect_leaks=1";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Bytes file(data, data + size);
  fuzz::seal(file);
  fuzz::attempt(file);
  return 0;
}

namespace {

std::size_t put(const fuzz::Bytes& file, std::uint8_t* data, std::size_t max_size) {
  if (file.size() > max_size) return 0;
  if (!file.empty()) std::memcpy(data, file.data(), file.size());
  return file.size();
}

std::size_t by_bytes(std::uint8_t* data, std::size_t size, std::size_t max_size) {
  fuzz::Bytes file(data, data + LLVMFuzzerMutate(data, size, max_size));
  fuzz::seal(file);
  return put(file, data, max_size);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  fuzz::Random random(seed);
  auto model = fuzz::parse({data, size});
  if (!model || random() % 10 == 0) return by_bytes(data, size, max_size);
  for (unsigned changes = 1 + random() % 4; changes > 0; --changes) fuzz::mutate(*model, nullptr, random);
  const std::size_t written = put(fuzz::write(*model), data, max_size);
  return written > 0 ? written : by_bytes(data, size, max_size);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size, const std::uint8_t* second,
                                                 std::size_t second_size, std::uint8_t* out, std::size_t max_size,
                                                 unsigned seed) {
  fuzz::Random random(seed);
  auto model = fuzz::parse({first, first_size});
  const auto other = fuzz::parse({second, second_size});
  if (!model || !other) return 0;
  for (unsigned changes = 1 + random() % 4; changes > 0; --changes) fuzz::mutate(*model, &*other, random);
  return put(fuzz::write(*model), out, max_size);
}

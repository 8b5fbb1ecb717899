#include "attempt.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "core/small_float.h"
#include "graph/load.h"
#include "run/module.h"
#include "run/session.h"
#include "run/target.h"

namespace fuzz {

namespace {

using namespace walle;

constexpr std::size_t kStorageBytes = std::size_t{1} << 18;
constexpr std::int64_t kRounds = 64, kMaxElements = 1 << 14;

// Copies exactly the bytes of the file, so that an access out of bounds is detected.
std::shared_ptr<Storage> storage_of(std::span<const std::uint8_t> bytes) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(64, (bytes.size() / 64 + 1) * 64));
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return Storage::borrow(data, bytes.size(), false, [data] { std::free(data); });
}

// Generates an input of a model: zeros, or (round 1) small numbers of both signs; unknown dimensions become 2.
Tensor input_of(const Value& value, int round) {
  Dims shape = value.any_rank ? Dims{2, 3} : value.shape;
  for (std::int64_t& dim : shape) dim = dim < 0 ? 2 : dim;
  const DType dtype = value.any_dtype ? DType::f32 : value.dtype;
  if (element_count(shape) > kMaxElements) throw std::bad_alloc();
  Tensor tensor = Tensor::empty(dtype, shape);
  const std::size_t item = item_size(dtype), count = static_cast<std::size_t>(tensor.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = round == 0 ? 0 : static_cast<std::int64_t>(i * 7 % 5) - 2;
    std::byte* at = tensor.raw() + i * item;
    if (dtype == DType::f32) {
      const float real = static_cast<float>(number) * 0.75f;
      std::memcpy(at, &real, item);
    } else if (dtype == DType::f64) {
      const double real = static_cast<double>(number) * 0.75;
      std::memcpy(at, &real, item);
    } else if (dtype == DType::f16) {
      const Half real(static_cast<float>(number) * 0.75f);
      std::memcpy(at, &real, item);
    } else if (dtype == DType::bf16) {
      const BFloat real(static_cast<float>(number) * 0.75f);
      std::memcpy(at, &real, item);
    } else {
      const std::int64_t whole = dtype == DType::b8 || is_packed(dtype) ? number & 1 : number;
      std::memcpy(at, &whole, item);
    }
  }
  return tensor;
}

void run(Session& session, int round) {
  std::vector<Tensor> inputs;
  for (const int input : session.graph().inputs)
    inputs.push_back(input_of(session.graph().values[static_cast<std::size_t>(input)], round));
  session.run(inputs);
}

std::vector<Var> run(Module& module, int round) {
  std::vector<Var> inputs;
  for (const int input : module.graph().inputs) {
    const Value& value = module.graph().values[static_cast<std::size_t>(input)];
    if (value.kind == ValueKind::object)
      inputs.emplace_back(std::make_shared<const Sequence>(Sequence{{input_of(value, round), input_of(value, 0)}, value.dtype}));
    else
      inputs.emplace_back(input_of(value, round));
  }
  return module.run(inputs);
}

template <class Make>
Outcome plan_and_run(Make&& make) {
  Outcome outcome = Outcome::refused;
  try {
    auto made = make();
    outcome = Outcome::planned;
    for (const int round : {0, 1}) run(*made, round);
    outcome = Outcome::ran;
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  return outcome;
}

}  // namespace

Outcome attempt(std::span<const std::uint8_t> file) {
  set_storage_limit(kStorageBytes);
  std::shared_ptr<const Graph> graph;
  try {
    graph = load_graph(storage_of(file));
  } catch (const Error&) {
    return Outcome::refused;
  }
  // Selected by the file's size: scalar kernels, or the backend that search selects.
  const Target target = find_target(file.size() % 128 == 0 ? "scalar" : "auto", 1);
  const Outcome session = plan_and_run([&] { return std::make_unique<Session>(graph, target); });
  const Outcome module = plan_and_run([&] { return std::make_unique<Module>(graph, target, kRounds); });
  return std::max(session, module);
}

std::vector<Var> results(std::span<const std::uint8_t> file, std::string_view backend) {
  Module module(load_graph(storage_of(file)), find_target(backend, 1), kRounds);
  return run(module, 1);
}

}  // namespace fuzz

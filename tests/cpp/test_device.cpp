// Tests of the device seam: copies on the host and on a device whose memory has no address on the host, and plans that run on
// either with the same results.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>

#include "arena_device.h"
#include "check.h"
#include "host/host_device.h"
#include "run/module.h"
#include "run/session.h"
#include "run/target.h"

using namespace walle;
using check::ArenaDevice;

namespace {

constexpr std::size_t kCapacity = 1 << 20;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Device& device, const Buffer& buffer, std::size_t offset, std::size_t size) {
  std::string text(size, ' ');
  device.read(buffer, offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// The copies that every device makes.
void test_copies(const Device& device) {
  CHECK(device.alignment() >= Storage::kAlignment && device.alignment() % Storage::kAlignment == 0);
  const Buffer from = device.allocate(11), to = device.allocate(300), empty = device.allocate(0);
  CHECK(from.size_bytes == 11 && to.size_bytes == 300 && empty.size_bytes == 0);
  CHECK(from.handle != to.handle);
  device.write(from, 0, bytes_of("hello arena"));
  device.write(to, 250, bytes_of("....."));
  device.copy(from, 6, to, 251, 3);
  CHECK(text_of(device, from, 0, 11) == "hello arena");
  CHECK(text_of(device, to, 250, 5) == ".are.");
  device.write(from, 4, bytes_of("0"));
  CHECK(text_of(device, from, 2, 5) == "ll0 a");
  device.write(empty, 0, {});
  device.read(empty, 0, {});
  device.copy(empty, 0, from, 0, 0);
  CHECK(text_of(device, from, 0, 1) == "h");
}

Tensor tensor_of(Dims shape, float first) {
  Tensor tensor = Tensor::empty(DType::f32, std::move(shape));
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = first + 0.5f * static_cast<float>(i);
  return tensor;
}

int add_value(Graph& graph, ValueKind kind, Dims shape = {}, Tensor constant = {}) {
  Value value;
  value.name = "v" + std::to_string(graph.values.size());
  value.kind = kind;
  value.shape = std::move(shape);
  value.constant = std::move(constant);
  graph.values.push_back(std::move(value));
  return static_cast<int>(graph.values.size() - 1);
}

int add_constant(Graph& graph, Dims shape, float first) {
  return add_value(graph, ValueKind::constant, shape, tensor_of(shape, first));
}

int add_node(Graph& graph, std::string_view op, std::vector<int> inputs, Attributes attributes = {}) {
  Node node;
  node.op = find_operator(op);
  node.name = "the " + std::string(op);
  node.inputs = std::move(inputs);
  node.outputs = {add_value(graph, ValueKind::result)};
  node.attributes = std::move(attributes);
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().outputs[0];
}

// Of x (`rows`, 3): a product, a sum and rasters; the outputs are a transposed and joined value, the sum, and x itself.
std::shared_ptr<const Graph> small_graph(std::int64_t rows) {
  auto graph = std::make_shared<Graph>();
  const int x = add_value(*graph, ValueKind::input, {rows, 3});
  graph->inputs = {x};
  const int product = add_node(*graph, "MatMul", {x, add_constant(*graph, {3, 4}, 1)});
  const int sum = add_node(*graph, "Add", {product, add_constant(*graph, {2, 4}, -3)});
  const int turned = add_node(*graph, "Transpose", {sum}, {{"perm", std::vector<std::int64_t>{1, 0}}});
  const int joined = add_node(*graph, "Concat", {turned, turned}, {{"axis", std::int64_t{0}}});
  const int doubled = add_node(*graph, "Add", {joined, joined});
  graph->outputs = {{"doubled", doubled}, {"sum", sum}, {"x", x}};
  return graph;
}

Target arena_target(const ArenaDevice& device) { return {device.kernel_sets()[0], true}; }

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.shape() == y.shape() && std::equal(x.data<float>(), x.data<float>() + x.size(), y.data<float>());
  });
}

void test_a_plan_runs_as_on_the_host() {
  const ArenaDevice device(kCapacity);
  {
    Session there(small_graph(2), arena_target(device)), here(small_graph(2), find_target("scalar", 1));
    CHECK(there.plan()->kernels->name() == "arena");
    CHECK(there.plan()->costs.size() == 1 && there.plan()->costs[0].first == "arena");
    CHECK(device.written_bytes() == (3 * 4 + 2 * 4) * sizeof(float));  // constants
    std::size_t allocations = 0;
    for (const float first : {1.0f, -2.0f, 1024.0f}) {
      const Tensor x = tensor_of({2, 3}, first);
      CHECK(same(there.run({&x, 1}), here.run({&x, 1})));
      if (allocations != 0) CHECK(device.allocations() == allocations);  // a run allocates no further memory
      allocations = device.allocations();
    }
    CHECK(device.commands() > 0 && device.commands() % 3 == 0);
    CHECK(device.read_bytes() == 3 * (8 * 2 + 2 * 4 + 2 * 3) * sizeof(float));
    std::vector<double> us;
    const Tensor x = tensor_of({2, 3}, 4);
    there.run({&x, 1}, us);
    CHECK(us.size() == there.plan()->ops.size() && std::all_of(us.begin(), us.end(), [](double one) { return one == 1; }));
  }
  CHECK(device.live_bytes() == 0);
}

// Nodes whose shapes depend on data run on the host, between pieces that run on the device.
void test_a_module_computes_data_dependent_nodes_on_the_host() {
  const auto make = [] {
    auto graph = std::make_shared<Graph>();
    const int x = add_value(*graph, ValueKind::input, {2, 3}), mask = add_value(*graph, ValueKind::input, {6});
    graph->values[static_cast<std::size_t>(mask)].dtype = DType::b8;
    graph->inputs = {x, mask};
    const int doubled = add_node(*graph, "Add", {x, x});
    const int chosen = add_node(*graph, "Compress", {doubled, mask});
    graph->outputs = {{"y", add_node(*graph, "Add", {chosen, chosen})}};
    return graph;
  };
  const ArenaDevice device(kCapacity);
  Module there(make(), arena_target(device)), here(make(), find_target("scalar", 1));
  Tensor mask = Tensor::empty(DType::b8, {6});
  for (std::int64_t i = 0; i < 6; ++i) mask.data<bool>()[i] = i % 3 != 1;
  const std::array<Var, 2> inputs{tensor_of({2, 3}, 7), mask};
  CHECK(same({std::get<Tensor>(there.run(inputs)[0])}, {std::get<Tensor>(here.run(inputs)[0])}));
  CHECK(device.commands() == 2);
}

void test_errors() {
  const ArenaDevice device(kCapacity);
  auto unknown = std::make_shared<Graph>();
  const int x = add_value(*unknown, ValueKind::input, {2, 3});
  unknown->inputs = {x};
  unknown->outputs = {{"y", add_node(*unknown, "Exp", {x})}};
  CHECK_ERROR(Session(unknown, arena_target(device)), unsupported);

  Session session(small_graph(2), arena_target(device));
  const Tensor infinite = tensor_of({2, 3}, std::numeric_limits<float>::infinity());
  std::string what;
  try {
    session.run({&infinite, 1});
  } catch (const Error& error) {
    what = error.what();
  }
  CHECK(what == "node 'the MatMul' (MatMul): an infinite number");

  const Tensor fine = tensor_of({2, 3}, 1);
  bool stopped = false;
  try {
    session.run({&fine, 1}, {.deadline = StopLimits::Clock::now()});
  } catch (const WorkStopped&) {
    stopped = true;
  }
  CHECK(stopped);
  CHECK(session.run({&fine, 1}).size() == 3);

  const ArenaDevice tiny(256);
  bool refused = false;
  try {
    Session too_large(small_graph(2), arena_target(tiny));
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
  CHECK(tiny.live_bytes() == 0);
}

// The instruction sets are kernel sets of one device. Search leaves scalar out where the CPU has vectors.
void test_instruction_sets_belong_to_the_host() {
  const auto searched = host_device().kernel_sets();
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) {
      CHECK_ERROR(host_kernels(set.name), backend);
      continue;
    }
    const KernelSet& kernels = host_kernels(set.name);
    CHECK(kernels.name() == set.name);
    CHECK(&kernels.device() == &host_device());
    const bool weighed = set.exact && (set.name != "scalar" || searched.size() == 1);
    CHECK((std::find(searched.begin(), searched.end(), &kernels) != searched.end()) == weighed);
  }
}

// Runs after the destructors of static objects that the tests were the first to use: a thread may still compute then.
void test_the_host_plans_and_runs_when_the_process_exits() {
  test_instruction_sets_belong_to_the_host();
  const Tensor x = tensor_of({2, 3}, 1);
  CHECK(Session(small_graph(2), find_target("auto", 1)).run({&x, 1}).size() == 3);
  if (check::failures != 0) std::_Exit(1);
}

}  // namespace

int main() {
  CHECK(std::atexit(test_the_host_plans_and_runs_when_the_process_exits) == 0);
  test_copies(host_device());
  {
    const ArenaDevice device(kCapacity);
    test_copies(device);
    CHECK(device.live_bytes() == 0);
  }
  test_a_plan_runs_as_on_the_host();
  test_a_module_computes_data_dependent_nodes_on_the_host();
  test_errors();
  {
    const Tensor x = tensor_of({2, 3}, 1);
    CHECK(Session(small_graph(2), find_target("auto", 1)).run({&x, 1}).size() == 3);
  }
  test_instruction_sets_belong_to_the_host();
  return check::failures != 0;
}

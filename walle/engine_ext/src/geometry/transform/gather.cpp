// The Gather family. Along one axis with constant indices a Gather is regions; all others are indexed rasters.
#include <algorithm>

#include "geometry/indexed_raster.h"
#include "geometry/transform/runs.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Above this number of regions an indexed raster is as fast.
constexpr std::size_t kMaxCopiedRuns = 64;

std::int64_t extent_product(const Dims& dims, std::size_t begin, std::size_t end) {
  return element_count(Dims(dims.begin() + static_cast<std::ptrdiff_t>(begin), dims.begin() + static_cast<std::ptrdiff_t>(end)));
}

Dims gather_shape(const Dims& from, std::size_t axis, const Dims& indices) {
  Dims shape(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(axis));
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), from.begin() + static_cast<std::ptrdiff_t>(axis) + 1, from.end());
  element_count(shape);
  return shape;
}

Ref indexed_gather(Emitter& emitter, Ref data, Ref indices, const IndexedMovement& movement, Dims shape) {
  Attributes attributes = movement.attributes();
  attributes.set("shape", std::move(shape));
  return emitter.one("IndexedGather", {data, indices}, std::move(attributes));
}

Ref indexed_scatter(Emitter& emitter, std::span<const Ref> inputs, Ref indices, const IndexedMovement& movement,
                    const std::string& reduction) {
  Attributes attributes = movement.attributes();
  attributes.set("reduction", reduction);
  return emitter.one("IndexedScatter", {inputs[0], indices, inputs[2]}, std::move(attributes));
}

// Data and indices of equal rank; element c of the smaller side corresponds to data[c, with index[c] along the axis].
IndexedMovement elements_movement(const Dims& data, const Dims& indices, std::size_t axis, const char* op) {
  bool fits = data.size() == indices.size();
  for (std::size_t i = 0; fits && i < data.size(); ++i) fits = i == axis || indices[i] <= data[i];
  if (!fits)
    throw Error(ErrorKind::shape, std::string(op) + " with indices of shape " + to_string(indices) + " into " + to_string(data));
  const Dims strides = contiguous_strides(data), own = contiguous_strides(indices);
  IndexedMovement movement{indices, strides, own, own, 0, 0, 0, 0, {strides[axis]}, {data[axis]}};
  movement.indexed_stride[axis] = 0;
  return movement;
}

// The last axis of the indices addresses the data's axes from `batch` on, after `batch` axes that both share.
IndexedMovement nd_movement(const Dims& data, const Dims& indices, std::size_t batch, const char* op) {
  const std::int64_t depth = indices.empty() ? -1 : indices.back();
  bool fits = depth >= 0 && batch < indices.size() && batch + static_cast<std::size_t>(depth) <= data.size();
  for (std::size_t i = 0; fits && i < batch; ++i) fits = data[i] == indices[i];
  if (!fits)
    throw Error(ErrorKind::shape, std::string(op) + " with indices of shape " + to_string(indices) + " into " + to_string(data));
  const auto deep = static_cast<std::size_t>(depth);
  const std::int64_t outer = extent_product(indices, 0, batch), places = extent_product(indices, batch, indices.size() - 1);
  const std::int64_t inner = extent_product(data, batch + deep, data.size()), whole = extent_product(data, batch, data.size());
  element_count({outer, places, inner});
  IndexedMovement movement{
      {outer, places, inner}, {whole, 0, 1}, {places * inner, inner, 1}, {places * depth, depth, 0}, 0, 0, 0, 1, {}, {}};
  const Dims strides = contiguous_strides(data);
  for (std::size_t k = 0; k < deep; ++k) {
    movement.weight.push_back(strides[batch + k]);
    movement.extent.push_back(data[batch + k]);
  }
  return movement;
}

}  // namespace

// ONNX Gather along an axis: runs of evenly spaced indices become one region each.
std::vector<Movement> make_gather(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  if (operands[1].constant == nullptr) throw ValueNeeded(1, "'indices'");
  Operand flat = operands[1];
  Tensor view;
  if (flat.constant->ndim() != 1) {
    if (!flat.constant->contiguous()) throw Error(ErrorKind::shape, "the indices of Gather must be contiguous");
    view = Tensor(flat.constant->storage(), flat.dtype, {flat.constant->size()}, {1}, flat.constant->offset());
    flat.constant = &view;
  }
  Dims indices = required_numbers(std::span(&flat, 1), 0, attributes, "indices");
  const std::int64_t dim = from[axis];
  StopPoll poll;
  for (std::int64_t& index : indices) {
    if (!poll.proceed(1)) throw_if_stopped();
    if (index < -dim || index >= dim)
      throw Error(ErrorKind::shape, "index " + std::to_string(index) + " is out of range for axis " + std::to_string(axis) +
                                        " of " + to_string(from));
    if (index < 0) index += dim;
  }
  Movement result{operands[0].dtype, gather_shape(from, axis, operands[1].shape), {}, {}};
  auto chosen = runs_of(indices, kMaxCopiedRuns);
  if (!chosen) throw ValueNeeded(1, "'indices'");
  Dims to = from;  // the indices as one axis
  to[axis] = static_cast<std::int64_t>(indices.size());
  std::vector<std::vector<Run>> runs;
  for (std::size_t i = 0; i < from.size(); ++i) runs.push_back(i == axis ? *chosen : whole_axis(from[i]));
  result.regions = regions_of(0, from, runs, to);
  return {std::move(result)};
}

std::vector<Ref> gather_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims from = emitter.operand(inputs[0]).shape, indices = emitter.operand(inputs[1]).shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  Dims shape = gather_shape(from, axis, indices);
  const std::int64_t outer = extent_product(from, 0, axis), inner = extent_product(from, axis + 1, from.size()),
                     count = element_count(indices);
  const IndexedMovement movement{
      {outer, count, inner}, {from[axis] * inner, 0, 1}, {count * inner, inner, 1}, {0, 1, 0}, 0, 0, 0, 0, {inner}, {from[axis]}};
  return {indexed_gather(emitter, inputs[0], inputs[1], movement, std::move(shape))};
}

// ai.onnx.ml's ArrayFeatureExtractor: the elements of the last axis that operand 1 names; one dimension gives a matrix of one
// row.
std::vector<Movement> make_array_feature_extractor(std::span<const Operand> operands, const Attributes&, int) {
  Operand flat = operands[1];
  flat.shape = {element_count(operands[1].shape)};
  const Operand both[] = {operands[0], flat};
  auto result = make_gather(both, {{"axis", std::int64_t{-1}}}, 1);
  if (result[0].shape.size() == 1) result[0].shape.insert(result[0].shape.begin(), 1);
  return result;
}

std::vector<Ref> array_feature_extractor_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const Dims from = emitter.operand(inputs[0]).shape;
  Dims flat{element_count(emitter.operand(inputs[1]).shape)};
  const Ref columns = emitter.one("Reshape", {inputs[1]}, {{"shape", flat}, {"allowzero", std::int64_t{1}}});
  const Ref taken = emitter.one("Gather", {inputs[0], columns}, {{"axis", std::int64_t{-1}}});
  return {from.size() == 1 ? emitter.one("Unsqueeze", {taken}, {{"axes", Dims{0}}}) : taken};
}

// The other operators of the family are always indexed rasters.
std::vector<Movement> make_indexed_only(std::span<const Operand>, const Attributes&, int) { throw ValueNeeded(1, "'indices'"); }

std::vector<Ref> gather_elements_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims from = emitter.operand(inputs[0]).shape, indices = emitter.operand(inputs[1]).shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  return {indexed_gather(emitter, inputs[0], inputs[1], elements_movement(from, indices, axis, "GatherElements"), indices)};
}

std::vector<Ref> gather_nd_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims from = emitter.operand(inputs[0]).shape, indices = emitter.operand(inputs[1]).shape;
  const std::int64_t batch = attributes.get_int("batch_dims", 0);
  if (batch < 0) throw Error(ErrorKind::shape, "GatherND with batch_dims " + std::to_string(batch));
  const IndexedMovement movement = nd_movement(from, indices, static_cast<std::size_t>(batch), "GatherND");
  Dims shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), from.begin() + static_cast<std::ptrdiff_t>(batch + indices.back()), from.end());
  return {indexed_gather(emitter, inputs[0], inputs[1], movement, std::move(shape))};
}

std::vector<Ref> scatter_elements_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims data = emitter.operand(inputs[0]).shape, indices = emitter.operand(inputs[1]).shape;
  if (emitter.operand(inputs[2]).shape != indices)
    throw Error(ErrorKind::shape, "ScatterElements with indices of shape " + to_string(indices) + " and updates of " +
                                      to_string(emitter.operand(inputs[2]).shape));
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), data.size());
  return {indexed_scatter(emitter, inputs, inputs[1], elements_movement(data, indices, axis, "ScatterElements"),
                          attributes.get_string("reduction", "none"))};
}

std::vector<Ref> scatter_nd_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims data = emitter.operand(inputs[0]).shape, indices = emitter.operand(inputs[1]).shape;
  const IndexedMovement movement = nd_movement(data, indices, 0, "ScatterND");
  Dims wanted(indices.begin(), indices.end() - 1);
  wanted.insert(wanted.end(), data.begin() + static_cast<std::ptrdiff_t>(indices.back()), data.end());
  if (emitter.operand(inputs[2]).shape != wanted)
    throw Error(ErrorKind::shape,
                "ScatterND needs updates of shape " + to_string(wanted) + ", not " + to_string(emitter.operand(inputs[2]).shape));
  return {indexed_scatter(emitter, inputs, inputs[1], movement, attributes.get_string("reduction", "none"))};
}

// ONNX TensorScatter: write `update` into a cache along one axis, for every batch at its own position; mode "circular" wraps
// around.
std::vector<Ref> tensor_scatter_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims cache = emitter.operand(inputs[0]).shape, update = emitter.operand(inputs[1]).shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", -2), cache.size());
  const std::string mode = attributes.get_string("mode", "linear");
  if (mode != "linear" && mode != "circular")
    throw Error(ErrorKind::unsupported, "TensorScatter mode '" + mode + "'; known are linear and circular");
  Dims rest = update;
  if (rest.size() == cache.size()) rest[axis] = cache[axis];
  if (axis == 0 || rest != cache || update[axis] > cache[axis])
    throw Error(ErrorKind::shape,
                "TensorScatter of " + to_string(update) + " into " + to_string(cache) + " along axis " + std::to_string(axis));
  const std::int64_t batch = cache[0], length = cache[axis], steps = update[axis];
  const std::int64_t middle = extent_product(cache, 1, axis), inner = extent_product(cache, axis + 1, cache.size());
  Tensor count = Tensor::empty(DType::i64, {1, steps});
  for (std::int64_t i = 0; i < steps; ++i) count.data<std::int64_t>()[i] = i;
  Ref places = emitter.constant(std::move(count));
  if (inputs.size() > 2 && inputs[2] != Emitter::kAbsent) {
    if (emitter.operand(inputs[2]).shape != Dims{batch})
      throw Error(ErrorKind::shape, "TensorScatter needs one write index for each batch");
    places = emitter.one("Add", {emitter.one("Unsqueeze", {inputs[2]}, {{"axes", Dims{1}}}), places});
  } else {
    places = emitter.one("Expand", {places}, {{"shape", Dims{batch, steps}}});
  }
  if (mode == "circular") {
    Tensor around = Tensor::empty(DType::i64, {});
    *around.data<std::int64_t>() = length;
    places = emitter.one("FloorMod", {places, emitter.constant(std::move(around))});
  }
  const IndexedMovement movement{{batch, middle, steps, inner},
                                 {middle * length * inner, length * inner, 0, 1},
                                 {middle * steps * inner, steps * inner, inner, 1},
                                 {steps, 0, 1, 0},
                                 0,
                                 0,
                                 0,
                                 0,
                                 {inner},
                                 {length}};
  const Ref operands[] = {inputs[0], places, inputs[1]};
  return {indexed_scatter(emitter, operands, places, movement, "none")};
}

}  // namespace walle

#include "host/packed_values.h"

#include <algorithm>

#include "graph/index.h"

namespace walle {

PackedValues::PackedValues(Program& program, std::int64_t pack)
    : program_(program), packing_(pack), packed_(program.values.size(), -1), plain_(program.values.size(), true) {}

int PackedValues::add_value(Dims shape) {
  program_.values.push_back({DType::f32, std::move(shape), {}, -1, {}});
  packed_.push_back(-1);
  plain_.push_back(true);
  return static_cast<int>(program_.values.size() - 1);
}

int PackedValues::add_constant(Tensor tensor) {
  const int index = add_value(tensor.shape());
  program_.values[at(index)].constant = std::move(tensor);
  return index;
}

int PackedValues::add_packed_result(int index) {
  const int packed = add_value(packing_.shape(value(index).shape));
  packed_[at(index)] = packed;
  plain_[at(index)] = false;
  return packed;
}

void PackedValues::add_raster(int from, int to, std::vector<Region> regions, std::string name) {
  ProgramOp raster;
  raster.name = std::move(name);
  raster.inputs = {from};
  raster.output = to;
  raster.regions = std::move(regions);
  add_op(std::move(raster));
  ++program_.rasters_made;
}

bool PackedValues::defer(ProgramOp& op) {
  if (!op.is_raster() || rename_offset(program_, op) != std::int64_t{0}) return false;
  const int source = source_of(op.inputs[at(op.regions[0].source)]);
  if (!only_packed(source) || element_count(value(source).shape) != element_count(value(op.output).shape)) return false;
  op.inputs = {source};
  op.regions[0].source = 0;
  plain_[at(op.output)] = false;
  deferred_.emplace(op.output, std::move(op));
  return true;
}

int PackedValues::source_of(int index) const {
  const auto found = deferred_.find(index);
  return found == deferred_.end() ? index : found->second.inputs[0];
}

int PackedValues::need_plain(int index) {
  if (plain_[at(index)]) return index;
  if (const auto found = deferred_.find(index); found != deferred_.end()) {
    need_plain(found->second.inputs[0]);
    add_op(std::move(found->second));
    deferred_.erase(found);
    plain_[at(index)] = true;
    return index;
  }
  add_raster(packed_[at(index)], index, packing_.to_plain(value(index).shape), "unpack");
  plain_[at(index)] = true;
  return index;
}

int PackedValues::need_packed(int index) {
  if (!is_packed(index)) {
    need_plain(index);
    const Dims shape = value(index).shape;
    const int packed = add_value(packing_.shape(shape));
    packed_[at(index)] = packed;
    add_raster(index, packed, packing_.to_packed(shape), "pack");
  }
  return packed_[at(index)];
}

int PackedValues::pad_to_blocks(int index) {
  if (index < 0) return -1;
  const Tensor given = value(index).constant;
  const std::int64_t width = packing_.blocks_of(given.size()) * packing_.pack();
  if (given.size() == width) return index;
  Tensor padded = Tensor::empty(DType::f32, {width});
  std::fill_n(std::copy_n(given.data<float>(), given.size(), padded.data<float>()), width - given.size(), 0.0f);
  return add_constant(std::move(padded));
}

}  // namespace walle

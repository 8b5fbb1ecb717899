#include "geometry/transform/transform.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace walle {

// clang-format off
#define WALLE_MAKER(name) std::vector<Movement> make_##name(std::span<const Operand>, const Attributes&, int)
WALLE_MAKER(array_feature_extractor); WALLE_MAKER(as_strided); WALLE_MAKER(batch_to_space); WALLE_MAKER(bit_cast);
WALLE_MAKER(center_crop_pad); WALLE_MAKER(concat); WALLE_MAKER(cycle); WALLE_MAKER(delete); WALLE_MAKER(depth_to_space);
WALLE_MAKER(diag); WALLE_MAKER(diagonal); WALLE_MAKER(expand); WALLE_MAKER(eye_like); WALLE_MAKER(feature_vectorizer);
WALLE_MAKER(flatten); WALLE_MAKER(flip); WALLE_MAKER(gather); WALLE_MAKER(identity); WALLE_MAKER(im2col);
WALLE_MAKER(indexed_only); WALLE_MAKER(insert); WALLE_MAKER(meshgrid); WALLE_MAKER(pad); WALLE_MAKER(range);
WALLE_MAKER(repeat); WALLE_MAKER(reshape); WALLE_MAKER(reverse_sequence); WALLE_MAKER(roll); WALLE_MAKER(rot90);
WALLE_MAKER(slice); WALLE_MAKER(sliding_window); WALLE_MAKER(space_to_batch); WALLE_MAKER(space_to_depth); WALLE_MAKER(split);
WALLE_MAKER(squeeze); WALLE_MAKER(stack); WALLE_MAKER(tile); WALLE_MAKER(transpose); WALLE_MAKER(trilu); WALLE_MAKER(unsqueeze);
WALLE_MAKER(unstack);
#undef WALLE_MAKER
#define WALLE_AT_RUN_TIME(name) std::vector<int> name##_at_run_time(Emitter&, std::span<const int>, const Attributes&, int)
WALLE_AT_RUN_TIME(array_feature_extractor); WALLE_AT_RUN_TIME(gather); WALLE_AT_RUN_TIME(gather_elements);
WALLE_AT_RUN_TIME(gather_nd); WALLE_AT_RUN_TIME(max_unpool); WALLE_AT_RUN_TIME(scatter_elements); WALLE_AT_RUN_TIME(scatter_nd);
WALLE_AT_RUN_TIME(tensor_scatter);
#undef WALLE_AT_RUN_TIME
// clang-format on

std::span<const Transform> transforms() noexcept {
  static constexpr std::array table{std::to_array<Transform>({
      {"ArrayFeatureExtractor", 2, 2, &make_array_feature_extractor, &array_feature_extractor_at_run_time},
      {"AsStrided", 1, 1, &make_as_strided},
      {"BatchToSpace", 1, 1, &make_batch_to_space},
      {"BitCast", 1, 1, &make_bit_cast},
      {"CenterCropPad", 2, 2, &make_center_crop_pad},
      {"Concat", 1, 1 << 16, &make_concat},
      {"Cycle", 1, 1, &make_cycle},
      {"Delete", 1, 1, &make_delete},
      {"DepthToSpace", 1, 1, &make_depth_to_space},
      {"Diag", 1, 1, &make_diag},
      {"Diagonal", 1, 1, &make_diagonal},
      {"Expand", 1, 2, &make_expand},
      {"EyeLike", 1, 1, &make_eye_like},
      {"FeatureVectorizer", 1, 1 << 16, &make_feature_vectorizer},
      {"Flatten", 1, 1, &make_flatten},
      {"Flip", 1, 1, &make_flip},
      {"Gather", 2, 2, &make_gather, &gather_at_run_time},
      {"GatherElements", 2, 2, &make_indexed_only, &gather_elements_at_run_time},
      {"GatherND", 2, 2, &make_indexed_only, &gather_nd_at_run_time},
      {"Identity", 1, 1, &make_identity},
      {"Im2Col", 1, 1, &make_im2col},
      {"Insert", 2, 2, &make_insert},
      {"MaxUnpool", 2, 3, &make_indexed_only, &max_unpool_at_run_time},
      {"Meshgrid", 1, 1 << 16, &make_meshgrid},
      {"Pad", 1, 4, &make_pad},
      {"Range", 3, 3, &make_range},
      {"Repeat", 1, 1, &make_repeat},
      {"Reshape", 1, 2, &make_reshape},
      {"ReverseSequence", 2, 2, &make_reverse_sequence},
      {"Roll", 1, 1, &make_roll},
      {"Rot90", 1, 1, &make_rot90},
      {"ScatterElements", 3, 3, &make_indexed_only, &scatter_elements_at_run_time},
      {"ScatterND", 3, 3, &make_indexed_only, &scatter_nd_at_run_time},
      {"Slice", 1, 5, &make_slice},
      {"SlidingWindow", 1, 1, &make_sliding_window},
      {"SpaceToBatch", 1, 1, &make_space_to_batch},
      {"SpaceToDepth", 1, 1, &make_space_to_depth},
      {"Split", 1, 2, &make_split},
      {"Squeeze", 1, 2, &make_squeeze},
      {"Stack", 1, 1 << 16, &make_stack},
      {"TensorScatter", 2, 3, &make_indexed_only, &tensor_scatter_at_run_time},
      {"Tile", 1, 2, &make_tile},
      {"Transpose", 1, 1, &make_transpose},
      {"Trilu", 1, 2, &make_trilu},
      {"Unsqueeze", 1, 2, &make_unsqueeze},
      {"Unstack", 1, 1, &make_unstack},
  })};
  static_assert(std::ranges::is_sorted(table, {}, &Transform::name));
  return table;
}

Region region_of(int source, const Dims& size, const Dims& src_stride, std::int64_t src_offset, const Dims& dst_stride,
                 std::int64_t dst_offset, const Dims& from, const Dims& to) {
  return Region::make(source, size, src_stride, src_offset, dst_stride, dst_offset, element_count(from), element_count(to));
}

void add_regions(std::vector<Region>& regions, int source, const Dims& size, const Dims& src_stride, std::int64_t src_offset,
                 const Dims& dst_stride, std::int64_t dst_offset, const Dims& from, const Dims& to) {
  constexpr std::size_t kMaxRegions = 1 << 16;
  if (regions.size() >= kMaxRegions)
    throw Error(ErrorKind::shape, "a movement from " + to_string(from) + " to " + to_string(to) + " takes too many regions");
  if (Region::axes_needed(size, src_stride, dst_stride) <= kMaxAxes) {
    regions.push_back(region_of(source, size, src_stride, src_offset, dst_stride, dst_offset, from, to));
    return;
  }
  std::size_t shortest = 0;
  for (std::size_t i = 1; i < size.size(); ++i)
    if (size[i] > 1 && (size[shortest] == 1 || size[i] < size[shortest])) shortest = i;
  Dims one = size;
  one[shortest] = 1;
  for (std::int64_t at = 0; at < size[shortest]; ++at)
    add_regions(regions, source, one, src_stride, src_offset + at * src_stride[shortest], dst_stride,
                dst_offset + at * dst_stride[shortest], from, to);
}

Tensor zero_fill(DType dtype) {
  Tensor zero = Tensor::empty(dtype, {});
  std::memset(zero.raw(), 0, item_size(dtype));
  return zero;
}

}  // namespace walle

#include "atomic/atomic.h"

#include <algorithm>
#include <array>

namespace walle {

// clang-format off
#define WALLE_ATOMIC(name) \
  TensorType infer_##name(std::span<const Operand>, const Attributes&); \
  std::unique_ptr<HostStep> make_##name(const StepRequest&);
WALLE_ATOMIC(bilateral_filter)
WALLE_ATOMIC(box_filter)
WALLE_ATOMIC(canny_edges)
WALLE_ATOMIC(cast)
WALLE_ATOMIC(channel_affine)
WALLE_ATOMIC(channel_moments)
WALLE_ATOMIC(channel_normalize)
WALLE_ATOMIC(channel_sums)
WALLE_ATOMIC(cholesky)
WALLE_ATOMIC(col2im)
WALLE_ATOMIC(color_convert)
WALLE_ATOMIC(color_to_yuv)
WALLE_ATOMIC(connected_components)
WALLE_ATOMIC(conv)
WALLE_ATOMIC(conv_input_gradient)
WALLE_ATOMIC(conv_weight_gradient)
WALLE_ATOMIC(cum_prod)
WALLE_ATOMIC(cum_sum)
WALLE_ATOMIC(deform_columns)
WALLE_ATOMIC(det)
WALLE_ATOMIC(eigh)
WALLE_ATOMIC(fourier_transform)
WALLE_ATOMIC(gate)
WALLE_ATOMIC(grid_sample)
WALLE_ATOMIC(grid_sample_gradient)
WALLE_ATOMIC(image_filter)
WALLE_ATOMIC(image_histogram)
WALLE_ATOMIC(image_integral)
WALLE_ATOMIC(image_lookup)
WALLE_ATOMIC(image_pointwise)
WALLE_ATOMIC(image_resize)
WALLE_ATOMIC(image_sums)
WALLE_ATOMIC(in_range)
WALLE_ATOMIC(indexed_gather)
WALLE_ATOMIC(indexed_scatter)
WALLE_ATOMIC(integer_conv)
WALLE_ATOMIC(integer_linear)
WALLE_ATOMIC(integer_pool_max)
WALLE_ATOMIC(integer_quantize)
WALLE_ATOMIC(integer_sum)
WALLE_ATOMIC(linear)
WALLE_ATOMIC(max_roi_pool)
WALLE_ATOMIC(median_filter)
WALLE_ATOMIC(morphology)
WALLE_ATOMIC(pool_arg_max)
WALLE_ATOMIC(pool_max)
WALLE_ATOMIC(pool_mean)
WALLE_ATOMIC(pool_sum)
WALLE_ATOMIC(prelu_gradient)
WALLE_ATOMIC(qr)
WALLE_ATOMIC(random_bits)
WALLE_ATOMIC(raster_gradient)
WALLE_ATOMIC(recurrent_gradient)
WALLE_ATOMIC(recurrent_steps)
WALLE_ATOMIC(remap)
WALLE_ATOMIC(resample)
WALLE_ATOMIC(roi_align)
WALLE_ATOMIC(roi_align_gradient)
WALLE_ATOMIC(search_sorted)
WALLE_ATOMIC(separable_filter)
WALLE_ATOMIC(solve)
WALLE_ATOMIC(stop_gradient)
WALLE_ATOMIC(svd)
WALLE_ATOMIC(top_indices)
WALLE_ATOMIC(top_values)
WALLE_ATOMIC(warp_affine)
WALLE_ATOMIC(warp_perspective)
WALLE_ATOMIC(yuv_to_color)
#undef WALLE_ATOMIC
// clang-format on

std::span<const Atomic> atomics() noexcept {
  static constexpr std::array table{std::to_array<Atomic>({
      {"BilateralFilter", 1, 1, &infer_bilateral_filter, &make_bilateral_filter},
      {"BoxFilter", 1, 1, &infer_box_filter, &make_box_filter},
      {"CannyEdges", 2, 2, &infer_canny_edges, &make_canny_edges},
      {"Cast", 1, 1, &infer_cast, &make_cast},
      {"ChannelAffine", 2, 5, &infer_channel_affine, &make_channel_affine},
      {"ChannelMoments", 1, 1, &infer_channel_moments, &make_channel_moments},
      {"ChannelNormalize", 4, 4, &infer_channel_normalize, &make_channel_normalize},
      {"ChannelSums", 3, 3, &infer_channel_sums, &make_channel_sums},
      {"Cholesky", 1, 1, &infer_cholesky, &make_cholesky},
      {"Col2Im", 3, 3, &infer_col2im, &make_col2im},
      {"ColorConvert", 1, 1, &infer_color_convert, &make_color_convert},
      {"ColorToYuv", 1, 1, &infer_color_to_yuv, &make_color_to_yuv},
      {"ConnectedComponents", 1, 1, &infer_connected_components, &make_connected_components},
      {"Conv", 2, 4, &infer_conv, &make_conv},
      {"ConvInputGradient", 2, 2, &infer_conv_input_gradient, &make_conv_input_gradient},
      {"ConvWeightGradient", 2, 2, &infer_conv_weight_gradient, &make_conv_weight_gradient},
      {"CumProd", 2, 2, &infer_cum_prod, &make_cum_prod},
      {"CumSum", 2, 2, &infer_cum_sum, &make_cum_sum},
      {"DeformColumns", 2, 3, &infer_deform_columns, &make_deform_columns},
      {"Det", 1, 1, &infer_det, &make_det},
      {"Eigh", 1, 1, &infer_eigh, &make_eigh},
      {"FourierTransform", 1, 1, &infer_fourier_transform, &make_fourier_transform},
      {"Gate", 2, 2, &infer_gate, &make_gate},
      {"GridSample", 2, 2, &infer_grid_sample, &make_grid_sample},
      {"GridSampleGradient", 3, 3, &infer_grid_sample_gradient, &make_grid_sample_gradient},
      {"ImageFilter", 1, 1, &infer_image_filter, &make_image_filter},
      {"ImageHistogram", 1, 2, &infer_image_histogram, &make_image_histogram},
      {"ImageIntegral", 1, 1, &infer_image_integral, &make_image_integral},
      {"ImageLookup", 2, 2, &infer_image_lookup, &make_image_lookup},
      {"ImagePointwise", 1, 2, &infer_image_pointwise, &make_image_pointwise},
      {"ImageResize", 1, 1, &infer_image_resize, &make_image_resize},
      {"ImageSums", 1, 2, &infer_image_sums, &make_image_sums},
      {"InRange", 1, 1, &infer_in_range, &make_in_range},
      {"IndexedGather", 2, 2, &infer_indexed_gather, &make_indexed_gather},
      {"IndexedScatter", 3, 3, &infer_indexed_scatter, &make_indexed_scatter},
      {"IntegerConv", 2, 6, &infer_integer_conv, &make_integer_conv},
      {"IntegerLinear", 2, 6, &infer_integer_linear, &make_integer_linear},
      {"IntegerPoolMax", 1, 1, &infer_integer_pool_max, &make_integer_pool_max},
      {"IntegerQuantize", 3, 3, &infer_integer_quantize, &make_integer_quantize},
      {"IntegerSum", 7, 7, &infer_integer_sum, &make_integer_sum},
      {"Linear", 2, 4, &infer_linear, &make_linear},
      {"MaxRoiPool", 2, 2, &infer_max_roi_pool, &make_max_roi_pool},
      {"MedianFilter", 1, 1, &infer_median_filter, &make_median_filter},
      {"Morphology", 1, 1, &infer_morphology, &make_morphology},
      {"PReluGradient", 3, 3, &infer_prelu_gradient, &make_prelu_gradient},
      {"PoolArgMax", 1, 1, &infer_pool_arg_max, &make_pool_arg_max},
      {"PoolMax", 1, 1, &infer_pool_max, &make_pool_max},
      {"PoolMean", 1, 1, &infer_pool_mean, &make_pool_mean},
      {"PoolSum", 1, 1, &infer_pool_sum, &make_pool_sum},
      {"Qr", 1, 1, &infer_qr, &make_qr},
      {"RandomBits", 1, 1, &infer_random_bits, &make_random_bits},
      {"RasterGradient", 1, 1, &infer_raster_gradient, &make_raster_gradient},
      {"RecurrentGradient", 3, 8, &infer_recurrent_gradient, &make_recurrent_gradient},
      {"RecurrentSteps", 3, 7, &infer_recurrent_steps, &make_recurrent_steps},
      {"Remap", 2, 4, &infer_remap, &make_remap},
      {"Resample", 3, 3, &infer_resample, &make_resample},
      {"RoiAlign", 3, 3, &infer_roi_align, &make_roi_align},
      {"RoiAlignGradient", 4, 4, &infer_roi_align_gradient, &make_roi_align_gradient},
      {"SearchSorted", 2, 2, &infer_search_sorted, &make_search_sorted},
      {"SeparableFilter", 1, 1, &infer_separable_filter, &make_separable_filter},
      {"Solve", 2, 2, &infer_solve, &make_solve},
      {"StopGradient", 1, 1, &infer_stop_gradient, &make_stop_gradient},
      {"Svd", 1, 1, &infer_svd, &make_svd},
      {"TopIndices", 1, 1, &infer_top_indices, &make_top_indices},
      {"TopValues", 1, 1, &infer_top_values, &make_top_values},
      {"WarpAffine", 1, 2, &infer_warp_affine, &make_warp_affine},
      {"WarpPerspective", 1, 2, &infer_warp_perspective, &make_warp_perspective},
      {"YuvToColor", 1, 2, &infer_yuv_to_color, &make_yuv_to_color},
  })};
  static_assert(std::ranges::is_sorted(table, {}, &Atomic::name));
  return table;
}

}  // namespace walle

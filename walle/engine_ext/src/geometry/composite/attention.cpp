// ONNX Attention (versions 23 to 25), by the text of onnx 1.23.2: soft cap before the mask, causality by the number of keys
// before the queries, and zeros for a query with no visible key (docs/adr/0014-models-from-onnx.md). Q, K and V are
// (batch, heads, length, size), or (batch, length, heads * size) with the numbers of heads as attributes. 16-bit floats are
// computed in float32.
#include <algorithm>
#include <cmath>
#include <limits>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

class Attention {
 public:
  Attention(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes) : emitter_(emitter), inputs_(inputs) {
    q_heads_ = attributes.get_int("q_num_heads", 0);
    kv_heads_ = attributes.get_int("kv_num_heads", 0);
    causal_ = attributes.get_int("is_causal", 0) != 0;
    scale_ = attributes.get_float("scale", 0);
    softcap_ = attributes.get_float("softcap", 0);
    mode_ = attributes.get_int("qk_matmul_output_mode", 0);
    left_ = std::min(attributes.get_int("left_window_size", -1), kMaxElements);
    right_ = std::min(attributes.get_int("right_window_size", -1), kMaxElements);
    // The softmax is computed in float32 at least; only float64 (ONNX's number 11) is more precise.
    const std::int64_t precision = attributes.get_int("softmax_precision", 1);
    double_softmax_ = precision == 11;
    if (precision != 1 && precision != 10 && precision != 11 && precision != 16)
      throw Error(ErrorKind::unsupported,
                  "softmax_precision is " + std::to_string(precision) + "; supported are 1, 10, 11 and 16");
    if (mode_ < 0 || mode_ > 3)
      throw Error(ErrorKind::model, "qk_matmul_output_mode is " + std::to_string(mode_) + "; it must be 0 to 3");
    if (left_ < -1 || right_ < -1)
      throw Error(ErrorKind::model, "left_window_size is " + std::to_string(left_) + " and right_window_size " +
                                        std::to_string(right_) + "; each must be -1 or more");
    if (has(4) != has(5)) throw Error(ErrorKind::model, "past_key and past_value must be given together");
    if (has(4) && has(6)) throw Error(ErrorKind::model, "nonpad_kv_seqlen cannot be combined with past_key");
  }

  std::vector<Ref> run(int outputs) {
    const Operand given_q = emitter_.operand(inputs_[0]);
    const DType dtype = given_q.dtype;
    wide_ = dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
    const bool flat = given_q.shape.size() == 3;
    const Ref q = heads(inputs_[0], q_heads_);
    Ref k = heads(inputs_[1], kv_heads_), v = heads(inputs_[2], kv_heads_);
    std::int64_t past = 0;
    if (has(4)) {
      const std::int64_t now = shape(k)[2];
      k = emitter_.one("Concat", {inputs_[4], k}, {{"axis", std::int64_t{2}}});
      past = shape(k)[2] - now;
    }
    if (has(5)) v = emitter_.one("Concat", {inputs_[5], v}, {{"axis", std::int64_t{2}}});
    const Ref present_key = has(4) ? k : identity(k), present_value = has(5) ? v : identity(v);
    const Dims q_shape = shape(q), k_shape = shape(k);
    const double scale = std::sqrt(scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<double>(q_shape[3])));
    const Ref factor = emitter_.number(scale, wide_);
    const Ref keys = emitter_.one("Transpose", {repeated(wide(k), q_shape[1])}, {{"perm", Dims{0, 1, 3, 2}}});
    Ref scores = one("MatMul", {one("Mul", {wide(q), factor}), one("Mul", {keys, factor})});
    Ref shown = scores;
    if (softcap_ > 0) {
      const Ref cap = emitter_.number(softcap_, wide_);
      scores = one("Mul", {one("Tanh", {one("Div", {scores, cap})}), cap});
    }
    if (mode_ == 1) shown = scores;
    const Ref bias = bias_of(q_shape[2], k_shape[2], past);
    if (bias != kAbsent) scores = one("Add", {scores, bias});
    if (mode_ == 2) shown = scores;
    Ref weights = emitter_.one("Softmax", {double_softmax_ ? cast(scores, DType::f64) : scores}, {{"axis", std::int64_t{-1}}});
    weights = cast(weights, wide_);
    const Ref masked = masked_rows(bias);
    const bool shows_weights = outputs > 3 && mode_ == 3;
    if (shows_weights) shown = weights = zero_where(masked, weights);
    Ref result = one("MatMul", {weights, repeated(wide(v), q_shape[1])});
    if (!shows_weights) result = zero_where(masked, result);
    result = cast(result, dtype);
    if (flat) {
      const Dims now = shape(result);
      result = reshaped(emitter_.one("Transpose", {result}, {{"perm", Dims{0, 2, 1, 3}}}), {now[0], now[2], now[1] * now[3]});
    }
    std::vector<Ref> results{result};
    if (outputs > 1) results.push_back(present_key);
    if (outputs > 2) results.push_back(present_value);
    if (outputs > 3) results.push_back(cast(shown, dtype));
    return results;
  }

 private:
  bool has(std::size_t index) const { return index < inputs_.size() && inputs_[index] != kAbsent; }
  Dims shape(Ref x) const { return emitter_.operand(x).shape; }
  Ref one(std::string_view op, std::vector<Ref> inputs) { return emitter_.one(op, std::move(inputs)); }
  Ref identity(Ref x) { return one("Identity", {x}); }
  Ref reshaped(Ref x, Dims to) {
    return emitter_.one("Reshape", {x}, {{"shape", std::move(to)}, {"allowzero", std::int64_t{1}}});
  }
  Ref cast(Ref x, DType dtype) {
    if (emitter_.operand(x).dtype == dtype) return x;
    return emitter_.one("Cast", {x}, {{"to", std::string(dtype_name(dtype))}});
  }
  Ref wide(Ref x) { return cast(x, wide_); }

  // (batch, heads, length, size)
  Ref heads(Ref x, std::int64_t count) {
    const Dims given = shape(x);
    if (given.size() == 4) return x;
    if (given.size() != 3 || count < 1 || given[2] % count != 0)
      throw Error(ErrorKind::shape, "an operand of shape " + to_string(given) + " with " + std::to_string(count) + " heads");
    return emitter_.one("Transpose", {reshaped(x, {given[0], given[1], count, given[2] / count})}, {{"perm", Dims{0, 2, 1, 3}}});
  }

  // Repeat every head of keys or values for each query head that shares it.
  Ref repeated(Ref x, std::int64_t q_heads) {
    const Dims given = shape(x);
    if (given[1] == q_heads) return x;
    if (given[1] < 1 || q_heads % given[1] != 0)
      throw Error(ErrorKind::shape, std::to_string(q_heads) + " query heads over " + std::to_string(given[1]) + " heads of keys");
    const Dims apart{given[0], given[1], q_heads / given[1], given[2], given[3]};
    const Ref spread = emitter_.one("Expand", {reshaped(x, {given[0], given[1], 1, given[2], given[3]})}, {{"shape", apart}});
    return reshaped(spread, {given[0], q_heads, given[2], given[3]});
  }

  Ref both(Ref a, Ref b) { return a == kAbsent ? b : one("And", {a, b}); }
  Ref minus_infinity() { return emitter_.number(-std::numeric_limits<double>::infinity(), wide_); }
  Ref whole(std::int64_t number) { return emitter_.number(static_cast<double>(number), DType::i64); }

  // Return first, first + 1, ... in an int64 tensor of this shape.
  Ref count_from(std::int64_t first, Dims shape) {
    Tensor numbers = Tensor::empty(DType::i64, std::move(shape));
    for (std::int64_t i = 0; i < numbers.size(); ++i) numbers.data<std::int64_t>()[i] = first + i;
    return emitter_.constant(std::move(numbers));
  }

  // Return attn_mask, padded with hidden keys after those that it covers.
  Ref padded_mask(std::int64_t kv_length) {
    const Ref mask = inputs_[3];
    const bool flags = emitter_.operand(mask).dtype == DType::b8;
    const Dims given = shape(mask);
    if (given.empty() || given.back() > kv_length)
      throw Error(ErrorKind::shape, "attn_mask has shape " + to_string(given) + " with " + std::to_string(kv_length) + " keys");
    const Ref own = flags ? mask : wide(mask);
    if (given.back() == kv_length) return own;
    Dims rest = given;
    rest.back() = kv_length - given.back();
    const Ref hidden = emitter_.one("Expand", {flags ? emitter_.number(0, DType::b8) : minus_infinity()}, {{"shape", rest}});
    return emitter_.one("Concat", {own, hidden}, {{"axis", std::int64_t{-1}}});
  }

  // Return the keys visible to a query at position p: p - left <= j <= p + right. A query's position is its index plus the number
  // of keys before the first query: those of the past, or nonpad_kv_seqlen minus the number of queries, or 0. kAbsent: all keys.
  Ref visible(std::int64_t q_length, std::int64_t kv_length, std::int64_t past) {
    const std::int64_t right = causal_ ? 0 : right_;
    if (!has(6)) {
      if (left_ < 0 && right < 0) return kAbsent;
      Tensor seen = Tensor::empty(DType::b8, {q_length, kv_length});
      for (std::int64_t i = 0; i < q_length; ++i)
        for (std::int64_t j = 0; j < kv_length; ++j)
          seen.data<bool>()[i * kv_length + j] = (right < 0 || j - past - i <= right) && (left_ < 0 || past + i - j <= left_);
      return emitter_.constant(std::move(seen));
    }
    const Ref keys = count_from(0, {1, 1, 1, kv_length});
    const Ref lengths = reshaped(cast(inputs_[6], DType::i64), {element_count(shape(inputs_[6])), 1, 1, 1});
    // The causal bound ends at the last non-padding key.
    Ref seen = right == 0 ? kAbsent : one("Less", {keys, lengths});
    if (left_ < 0 && right < 0) return seen;
    const Ref positions = one("Add", {count_from(-q_length, {1, 1, q_length, 1}), lengths});
    if (right == 0) seen = one("LessOrEqual", {keys, positions});
    if (right > 0) seen = both(seen, one("LessOrEqual", {keys, one("Add", {positions, whole(right)})}));
    if (left_ >= 0) seen = both(seen, one("GreaterOrEqual", {keys, one("Sub", {positions, whole(left_)})}));
    return seen;
  }

  // Return the bias of the scores: the mask, and -infinity for keys that are hidden from a query. kAbsent: no bias.
  Ref bias_of(std::int64_t q_length, std::int64_t kv_length, std::int64_t past) {
    Ref seen = visible(q_length, kv_length, past), mask = has(3) ? padded_mask(kv_length) : kAbsent;
    if (mask != kAbsent && emitter_.operand(mask).dtype == DType::b8) {
      seen = both(seen, mask);
      mask = kAbsent;
    }
    if (seen == kAbsent) return mask;
    return one("Where", {seen, mask == kAbsent ? emitter_.number(0, wide_) : mask, minus_infinity()});
  }

  // Return a mask of the queries without a visible key, to broadcast over the scores. kAbsent: no such query for any input.
  Ref masked_rows(Ref bias) {
    if (bias == kAbsent) return kAbsent;
    const Ref most = emitter_.one("ReduceMax", {bias}, {{"axes", Dims{-1}}, {"keepdims", std::int64_t{1}}});
    const Ref masked = one("Equal", {most, minus_infinity()});
    const Tensor* known = emitter_.operand(masked).constant;
    if (known == nullptr) return masked;
    const bool* rows = known->data<bool>();
    return std::any_of(rows, rows + known->size(), [](bool row) { return row; }) ? masked : kAbsent;
  }
  // Their softmax is NaN, which a multiplication would keep.
  Ref zero_where(Ref masked, Ref x) { return masked == kAbsent ? x : one("Where", {masked, emitter_.number(0, wide_), x}); }

  Emitter& emitter_;
  std::span<const Ref> inputs_;
  std::int64_t q_heads_, kv_heads_, mode_, left_, right_;
  bool causal_, double_softmax_;
  double scale_, softcap_;
  DType wide_ = DType::f32;
};

}  // namespace

std::vector<Ref> decompose_attention(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  return Attention(emitter, inputs, attributes).run(outputs);
}

}  // namespace walle

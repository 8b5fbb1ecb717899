// ONNX Attention (opset 23 and 24). Q, K and V are (batch, heads, length, size), or (batch, length, heads * size) with the
// numbers of heads as attributes. 16-bit floats are computed in float32.
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
    // A precision below what is computed in would only lose; float64 (ONNX's number 11) is the one above.
    double_softmax_ = attributes.get_int("softmax_precision", 1) == 11;
    if (mode_ < 0 || mode_ > 3) throw Error(ErrorKind::model, "qk_matmul_output_mode is " + std::to_string(mode_));
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
    scores = biased(scores, q_shape[2], k_shape[2], past);
    if (mode_ == 1) shown = scores;
    if (softcap_ > 0) {
      const Ref cap = emitter_.number(softcap_, wide_);
      scores = one("Mul", {one("Tanh", {one("Div", {scores, cap})}), cap});
    }
    if (mode_ == 2) shown = scores;
    Ref weights = emitter_.one("Softmax", {double_softmax_ ? cast(scores, DType::f64) : scores}, {{"axis", std::int64_t{-1}}});
    weights = cast(weights, wide_);
    if (mode_ == 3) shown = weights;
    Ref result = cast(one("MatMul", {weights, repeated(wide(v), q_shape[1])}), dtype);
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

  // Every head of keys or values as often as query heads share it.
  Ref repeated(Ref x, std::int64_t q_heads) {
    const Dims given = shape(x);
    if (given[1] == q_heads) return x;
    if (given[1] < 1 || q_heads % given[1] != 0)
      throw Error(ErrorKind::shape, std::to_string(q_heads) + " query heads over " + std::to_string(given[1]) + " heads of keys");
    const Dims apart{given[0], given[1], q_heads / given[1], given[2], given[3]};
    const Ref spread = emitter_.one("Expand", {reshaped(x, {given[0], given[1], 1, given[2], given[3]})}, {{"shape", apart}});
    return reshaped(spread, {given[0], q_heads, given[2], given[3]});
  }

  Ref chosen(Ref condition) {
    return one("Where", {condition, emitter_.number(0, wide_), emitter_.number(-std::numeric_limits<double>::infinity(), wide_)});
  }

  // The scores plus the mask, the causal triangle and the padding, as far as they are there.
  Ref biased(Ref scores, std::int64_t q_length, std::int64_t kv_length, std::int64_t past) {
    if (has(3)) {
      Ref mask = inputs_[3];
      if (emitter_.operand(mask).dtype == DType::b8) mask = chosen(mask);
      mask = wide(mask);
      const Dims given = shape(mask);
      if (given.empty() || given.back() > kv_length)
        throw Error(ErrorKind::shape, "attn_mask has shape " + to_string(given) + " with " + std::to_string(kv_length) + " keys");
      if (given.back() < kv_length) {  // what the mask does not reach is hidden
        Dims rest = given;
        rest.back() = kv_length - given.back();
        const Ref hidden =
            emitter_.one("Expand", {emitter_.number(-std::numeric_limits<double>::infinity(), wide_)}, {{"shape", rest}});
        mask = emitter_.one("Concat", {mask, hidden}, {{"axis", std::int64_t{-1}}});
      }
      scores = one("Add", {scores, mask});
    }
    if (causal_) {
      Tensor seen = Tensor::empty(DType::b8, {q_length, kv_length});
      for (std::int64_t i = 0; i < q_length; ++i)
        for (std::int64_t j = 0; j < kv_length; ++j) seen.data<bool>()[i * kv_length + j] = j <= i + past;
      scores = one("Add", {scores, chosen(emitter_.constant(std::move(seen)))});
    }
    if (has(6)) {
      Tensor places = Tensor::empty(DType::i64, {1, 1, 1, kv_length});
      for (std::int64_t j = 0; j < kv_length; ++j) places.data<std::int64_t>()[j] = j;
      const Ref lengths = reshaped(cast(inputs_[6], DType::i64), {element_count(shape(inputs_[6])), 1, 1, 1});
      scores = one("Add", {scores, chosen(one("Less", {emitter_.constant(std::move(places)), lengths}))});
    }
    return scores;
  }

  Emitter& emitter_;
  std::span<const Ref> inputs_;
  std::int64_t q_heads_, kv_heads_, mode_;
  bool causal_, double_softmax_;
  double scale_, softcap_;
  DType wide_ = DType::f32;
};

}  // namespace

std::vector<Ref> decompose_attention(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  return Attention(emitter, inputs, attributes).run(outputs);
}

}  // namespace walle

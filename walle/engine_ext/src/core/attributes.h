// Attributes: the named constants of a node, as ONNX defines them.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"

namespace walle {

using Texts = std::vector<std::string>;
using Attribute = std::variant<std::int64_t, double, std::string, Dims, std::vector<double>, Texts>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> items) : items_(items) {}

  void set(std::string name, Attribute value) { items_.emplace_back(std::move(name), std::move(value)); }
  bool has(std::string_view name) const noexcept { return find(name) != nullptr; }

  // Return the value, or the fallback where the attribute is not given; throw Error (model) where it has another type. An int
  // serves as a float and as a list of one.
  std::int64_t get_int(std::string_view name, std::int64_t fallback) const;
  double get_float(std::string_view name, double fallback) const;
  std::string get_string(std::string_view name, std::string_view fallback) const;
  std::optional<Dims> get_ints(std::string_view name) const;
  std::optional<std::vector<double>> get_floats(std::string_view name) const;  // a list of ints serves too
  std::optional<Texts> get_strings(std::string_view name) const;

  const std::vector<std::pair<std::string, Attribute>>& items() const noexcept { return items_; }

  // A copy of the attributes with these names.
  Attributes only(std::span<const std::string_view> names) const;

 private:
  const Attribute* find(std::string_view name) const noexcept;

  std::vector<std::pair<std::string, Attribute>> items_;
};

// Return the dtype that the attribute `to` names, by ONNX's number or NumPy's name. Throws Error (model, unsupported).
DType target_dtype(const Attributes& attributes);

}  // namespace walle

// x[key] and x[key] = value: views for ints, slices, None and an ellipsis; Gather for one array of indices or a mask.
#include <optional>

#include "bindings/convert.h"
#include "exec/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

bool is_array_key(py::handle item) {
  return py::isinstance<Tensor>(item) || PyList_Check(item.ptr()) ||
         (PyObject_CheckBuffer(item.ptr()) && !PyIndex_Check(item.ptr()));
}

// A mask of flags as the whole numbers of the true ones.
Tensor positions(const Tensor& mask) {
  const Tensor dense = contiguous(mask);
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < dense.size(); ++i)
    if (dense.data<bool>()[i]) found.push_back(i);
  Tensor result = Tensor::empty(DType::i64, {static_cast<std::int64_t>(found.size())});
  std::copy(found.begin(), found.end(), result.data<std::int64_t>());
  return result;
}

struct Basic {
  Tensor view;                   // the ints, slices, None and ellipsis applied
  std::optional<Tensor> chosen;  // indices along one axis of the view
  std::int64_t axis = 0;
};

Basic apply(const Tensor& x, py::handle key) {
  std::vector<py::handle> items;
  if (PyTuple_Check(key.ptr()))
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(key)) items.push_back(item);
  else
    items.push_back(key);
  std::size_t named = 0;
  bool ellipsis = false;
  for (const py::handle item : items) {
    if (item.ptr() == Py_Ellipsis) {
      if (ellipsis) throw py::index_error("an index holds more than one ellipsis");
      ellipsis = true;
    } else if (!item.is_none()) {
      ++named;
    }
  }
  const std::size_t rank = x.shape().size();
  if (named > rank)
    throw py::index_error(std::to_string(named) + " indices for an array of " + std::to_string(rank) + " dimensions");

  Basic result;
  Dims shape, strides;
  std::int64_t offset = x.offset();
  std::size_t axis = 0;
  const auto keep = [&](std::size_t count) {
    for (; count > 0; --count, ++axis) {
      shape.push_back(x.shape()[axis]);
      strides.push_back(x.strides()[axis]);
    }
  };
  for (const py::handle item : items) {
    if (item.is_none()) {
      shape.push_back(1);
      strides.push_back(0);
    } else if (item.ptr() == Py_Ellipsis) {
      keep(rank - named);
    } else if (PySlice_Check(item.ptr())) {
      py::ssize_t start, stop, step;
      if (PySlice_Unpack(item.ptr(), &start, &stop, &step) < 0) throw py::error_already_set();
      const py::ssize_t length = PySlice_AdjustIndices(static_cast<py::ssize_t>(x.shape()[axis]), &start, &stop, step);
      if (length > 0) offset += start * x.strides()[axis];
      shape.push_back(length);
      strides.push_back(length > 1 ? x.strides()[axis] * step : 0);
      ++axis;
    } else if (PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !is_array_key(item)) {
      const auto dim = x.shape()[axis];
      const py::ssize_t index = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
      if (index == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (index < -dim || index >= dim)
        throw py::index_error("index " + std::to_string(index) + " is out of range for axis " + std::to_string(axis) +
                              " of size " + std::to_string(dim));
      offset += (index < 0 ? index + dim : index) * x.strides()[axis];
      ++axis;
    } else if (is_array_key(item)) {
      if (result.chosen) throw py::index_error("an index holds more than one array; index in two steps");
      Tensor chosen = as_tensor(item);
      if (chosen.size() == 0) chosen = cast(chosen, DType::i64);
      if (chosen.dtype() == DType::b8) {
        if (chosen.shape() != Dims{x.shape()[axis]})
          throw py::index_error("a mask of shape " + to_string(chosen.shape()) + " on an axis of size " +
                                std::to_string(x.shape()[axis]));
        chosen = positions(chosen);
      } else if (chosen.dtype() != DType::i64 && chosen.dtype() != DType::i32) {
        if (chosen.dtype() != DType::u8)
          throw py::index_error("indices are whole numbers, not " + std::string(dtype_name(chosen.dtype())));
        chosen = cast(chosen, DType::i64);
      }
      const std::int64_t dim = x.shape()[axis];
      const Tensor wide = contiguous(cast(chosen, DType::i64));
      for (std::int64_t i = 0; i < wide.size(); ++i)
        if (const std::int64_t index = wide.data<std::int64_t>()[i]; index < -dim || index >= dim)
          throw py::index_error("index " + std::to_string(index) + " is out of range for axis " + std::to_string(axis) +
                                " of size " + std::to_string(dim));
      result.chosen = wide;
      result.axis = static_cast<std::int64_t>(shape.size());
      keep(1);
    } else {
      throw py::index_error("an index is made of ints, slices, None, an ellipsis and one array, not " +
                            std::string(Py_TYPE(item.ptr())->tp_name));
    }
  }
  keep(rank - axis);
  if (element_count(shape) == 0) offset = 0;
  result.view = view(x, std::move(shape), std::move(strides), offset);
  return result;
}

// A mask over all of x: one flag per element.
std::optional<Tensor> whole_mask(const Tensor& x, py::handle key) {
  if (x.ndim() < 2 || !is_array_key(key)) return std::nullopt;
  const Tensor mask = as_tensor(key);
  if (mask.dtype() != DType::b8 || mask.shape() != x.shape()) return std::nullopt;
  return mask;
}

Tensor gather(const Tensor& x, const Tensor& indices, std::int64_t axis) {
  const Tensor inputs[] = {x, indices};
  return evaluate_one("Gather", inputs, {{"axis", axis}});
}

}  // namespace

Tensor get_item(const Tensor& x, py::handle key) {
  if (const auto mask = whole_mask(x, key)) return gather(reshaped(x, {-1}), positions(*mask), 0);
  const Basic basic = apply(x, key);
  return basic.chosen ? gather(basic.view, *basic.chosen, basic.axis) : basic.view;
}

void set_item(const Tensor& x, py::handle key, py::handle value) {
  const Tensor source = as_tensor(value, x.dtype());
  if (const auto mask = whole_mask(x, key)) {
    const Tensor inputs[] = {*mask, source, x};
    return assign(evaluate_one("Where", inputs), x);
  }
  const Basic basic = apply(x, key);
  if (!basic.chosen) return assign(source, basic.view);
  // One index at a time, the last one winning, as NumPy does; the value is seen in the shape of the gathered result.
  const auto axis = static_cast<std::size_t>(basic.axis);
  Dims shape = basic.view.shape();
  const Tensor flat = reshaped(*basic.chosen, {-1});
  if (basic.chosen->ndim() != 1) throw py::index_error("assignment takes indices of one dimension");
  shape[axis] = flat.size();
  const Tensor wide = view(source, shape, broadcast_strides(source.shape(), source.strides(), shape), source.offset());
  const auto row = [axis](const Tensor& tensor, std::int64_t index) {
    Dims rest = tensor.shape(), strides = tensor.strides();
    const std::int64_t offset = tensor.offset() + index * strides[axis];
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(axis));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(axis));
    return view(tensor, std::move(rest), std::move(strides), offset);
  };
  for (std::int64_t i = 0; i < flat.size(); ++i) {
    const std::int64_t index = flat.data<std::int64_t>()[i];
    assign(row(wide, i), row(basic.view, index < 0 ? index + basic.view.shape()[axis] : index));
  }
}

}  // namespace walle

// x[key] and x[key] = value as in NumPy: ints, slices, None and an ellipsis are a view; arrays of indices and masks are an
// indexed raster over that view, read or written in place.
#include <cstring>
#include <optional>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "geometry/indexed_raster.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

bool is_array_key(py::handle item) {
  return is_ndarray(item) || PyList_Check(item.ptr()) || (PyObject_CheckBuffer(item.ptr()) && !PyIndex_Check(item.ptr()));
}
bool is_int_key(py::handle item) { return PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !is_array_key(item); }

[[noreturn]] void out_of_range(std::int64_t index, std::int64_t axis, std::int64_t size) {
  throw py::index_error("index " + std::to_string(index) + " is out of range for axis " + std::to_string(axis) + " of size " +
                        std::to_string(size));
}

std::int64_t integer_key(py::handle item, std::int64_t axis, std::int64_t size) {
  const py::ssize_t index = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (index < -size || index >= size) out_of_range(index, axis, size);
  return index < 0 ? index + size : index;
}

// A view of x in the making, from its first axis on.
struct Window {
  const Tensor& x;
  std::size_t axis = 0;  // the next one
  std::int64_t offset = x.offset();
  Dims shape{}, strides{};

  void add(std::int64_t size, std::int64_t stride) {
    shape.push_back(size);
    strides.push_back(stride);
  }
  void keep(std::size_t axes) {
    for (; axes > 0; --axes, ++axis) add(x.shape()[axis], x.strides()[axis]);
  }
  void slice(py::handle item) {
    py::ssize_t start, stop, step;
    if (PySlice_Unpack(item.ptr(), &start, &stop, &step) < 0) throw py::error_already_set();
    const py::ssize_t length = PySlice_AdjustIndices(static_cast<py::ssize_t>(x.shape()[axis]), &start, &stop, step);
    if (length > 0) offset += start * x.strides()[axis];
    add(length, length > 1 ? x.strides()[axis] * step : 0);
    ++axis;
  }
  void pick(py::handle item) {
    offset += integer_key(item, static_cast<std::int64_t>(axis), x.shape()[axis]) * x.strides()[axis];
    ++axis;
  }
  Tensor made() {
    if (element_count(shape) == 0) offset = 0;
    return view(x, std::move(shape), std::move(strides), offset);
  }
};

// The view that a key of Python's ints, slices, None and one ellipsis shows; nothing for any other key.
std::optional<Tensor> plain_view(const Tensor& x, py::handle key) {
  const bool many = PyTuple_Check(key.ptr());
  const Py_ssize_t count = many ? PyTuple_GET_SIZE(key.ptr()) : 1;
  const auto item = [&](Py_ssize_t i) { return many ? PyTuple_GET_ITEM(key.ptr(), i) : key.ptr(); };
  std::size_t named = 0, ellipses = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* one = item(i);
    if (one == Py_Ellipsis)
      ++ellipses;
    else if (PyLong_CheckExact(one) || PySlice_Check(one))
      ++named;
    else if (one != Py_None)
      return std::nullopt;
  }
  const std::size_t rank = x.shape().size();
  if (named > rank || ellipses > 1) return std::nullopt;
  Window window{x};
  window.shape.reserve(rank + static_cast<std::size_t>(count));
  window.strides.reserve(rank + static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* one = item(i);
    if (one == Py_None)
      window.add(1, 0);
    else if (one == Py_Ellipsis)
      window.keep(rank - named);
    else if (PySlice_Check(one))
      window.slice(one);
    else
      window.pick(one);
  }
  window.keep(rank - window.axis);
  return window.made();
}

// The places of a mask's true elements, counted row by row.
Tensor positions(const Tensor& mask) {
  const Tensor dense = contiguous(mask);
  const auto* flags = reinterpret_cast<const unsigned char*>(dense.raw());  // somebody else's memory may hold more than 0 and 1
  const std::int64_t size = dense.size();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) count += flags[i] != 0;
  Tensor result = Tensor::empty(DType::i64, {count});
  std::int64_t* to = result.data<std::int64_t>();
  for (std::int64_t i = 0, found = 0; found < count; ++i) {
    to[found] = i;
    found += flags[i] != 0;
  }
  return result;
}

// One part of a key, made ready.
struct Part {
  enum class Kind { integer, slice, new_axis, ellipsis, indices, mask } kind;
  py::handle given;
  Tensor array{};        // of indices or a mask
  std::size_t axes = 0;  // how many axes of x it takes
};

std::vector<Part> parts_of(const Tensor& x, py::handle key) {
  std::vector<py::handle> items;
  if (PyTuple_Check(key.ptr()))
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(key)) items.push_back(item);
  else
    items.push_back(key);
  std::vector<Part> parts;
  std::size_t named = 0;
  bool ellipsis = false;
  for (const py::handle item : items) {
    Part part{Part::Kind::integer, item, {}, 1};
    if (item.is_none()) {
      part.kind = Part::Kind::new_axis;
      part.axes = 0;
    } else if (item.ptr() == Py_Ellipsis) {
      if (ellipsis) throw py::index_error("an index holds more than one ellipsis");
      ellipsis = true;
      part.kind = Part::Kind::ellipsis;
      part.axes = 0;
    } else if (PySlice_Check(item.ptr())) {
      part.kind = Part::Kind::slice;
    } else if (is_array_key(item)) {
      part.array = as_tensor(item);
      if (part.array.size() == 0 && PyList_Check(item.ptr())) part.array = cast(part.array, DType::i64);
      part.kind = part.array.dtype() == DType::b8 ? Part::Kind::mask : Part::Kind::indices;
      if (part.kind == Part::Kind::mask) part.axes = part.array.shape().size();
      if (part.kind == Part::Kind::indices && !is_integer(part.array.dtype()))
        throw py::index_error("indices are whole numbers, not " + std::string(dtype_name(part.array.dtype())));
      if (part.kind == Part::Kind::mask && part.axes == 0) throw py::index_error("a mask needs a dimension");
    } else if (!is_int_key(item)) {
      throw py::index_error("an index is made of ints, slices, None, an ellipsis, arrays of whole numbers and masks, not " +
                            std::string(Py_TYPE(item.ptr())->tp_name));
    }
    named += part.axes;
    parts.push_back(std::move(part));
  }
  const std::size_t rank = x.shape().size();
  if (named > rank)
    throw py::index_error(std::to_string(named) + " indices for an array of " + std::to_string(rank) + " dimensions");
  if (!ellipsis) parts.push_back({Part::Kind::ellipsis, Py_Ellipsis, {}, 0});
  for (Part& part : parts)
    if (part.kind == Part::Kind::ellipsis) part.axes = rank - named;
  return parts;
}

// What a key picks: a view, or (with arrays) the elements of a base that an indexed movement reaches, in the order of `shape`.
struct Picked {
  Tensor view;  // where there are no arrays
  bool indexed = false;
  IndexedMovement movement;
  Tensor indices;  // (arrays, elements of each)
  Dims shape;
};

// An array of indices along one or more merged axes of x.
struct Along {
  Tensor indices;
  std::int64_t axis, size, weight;
};

void add_mask(const Tensor& x, const Part& part, std::size_t axis, std::vector<Along>& arrays) {
  const Dims over(x.shape().begin() + static_cast<std::ptrdiff_t>(axis),
                  x.shape().begin() + static_cast<std::ptrdiff_t>(axis + part.axes));
  if (part.array.shape() != over)
    throw py::index_error("a mask of shape " + to_string(part.array.shape()) + " on axes of shape " + to_string(over));
  const Tensor places = positions(part.array);
  bool one = true;  // the axes step as one
  for (std::size_t i = axis; i + 1 < axis + part.axes; ++i) one = one && x.strides()[i] == x.strides()[i + 1] * x.shape()[i + 1];
  if (one) {
    arrays.push_back({places, static_cast<std::int64_t>(axis), element_count(over), x.strides()[axis + part.axes - 1]});
    return;
  }
  std::int64_t below = element_count(over);
  for (std::size_t i = 0; i < part.axes; ++i) {
    Tensor along = Tensor::empty(DType::i64, places.shape());
    below = over[i] == 0 ? 0 : below / over[i];
    for (std::int64_t j = 0; j < places.size(); ++j)
      along.data<std::int64_t>()[j] = places.data<std::int64_t>()[j] / below % over[i];
    arrays.push_back({along, static_cast<std::int64_t>(axis + i), over[i], x.strides()[axis + i]});
  }
}

// The indices of all arrays one after the other, broadcast against each other, in range.
Tensor gathered(const std::vector<Along>& arrays, const Dims& shape) {
  const std::int64_t count = element_count(shape);
  Tensor all = Tensor::empty(DType::i64, {static_cast<std::int64_t>(arrays.size()), count});
  for (std::size_t k = 0; k < arrays.size(); ++k) {
    const Along& along = arrays[k];
    const std::int64_t offset = static_cast<std::int64_t>(k) * count;
    assign(cast(along.indices, DType::i64), view(all, shape, contiguous_strides(shape), offset));
    const std::int64_t* index = all.data<std::int64_t>() + offset;
    bool inside = true;
    for (std::int64_t i = 0; i < count; ++i) inside &= index[i] >= -along.size && index[i] < along.size;
    for (std::int64_t i = 0; !inside && i < count; ++i)
      if (index[i] < -along.size || index[i] >= along.size) out_of_range(index[i], along.axis, along.size);
  }
  return all;
}

Picked pick(const Tensor& x, py::handle key) {
  const std::vector<Part> parts = parts_of(x, key);
  Picked result;
  for (const Part& part : parts)
    result.indexed = result.indexed || part.kind == Part::Kind::indices || part.kind == Part::Kind::mask;
  Window window{x};
  std::vector<Along> arrays;
  // Where the arrays' own axes go in the result: at the first array, or in front where something stands between two of them.
  std::size_t place = 0;
  enum { before, within, behind } where = before;
  for (const Part& part : parts) {
    const bool array =
        part.kind == Part::Kind::indices || part.kind == Part::Kind::mask || (result.indexed && part.kind == Part::Kind::integer);
    if (array) {
      if (where == before) place = window.shape.size();
      if (where == behind) place = 0;
      where = within;
    } else if (where == within && !(part.kind == Part::Kind::ellipsis && part.axes == 0 && &part == &parts.back())) {
      where = behind;
    }
    switch (part.kind) {
      case Part::Kind::new_axis: window.add(1, 0); break;
      case Part::Kind::ellipsis: window.keep(part.axes); break;
      case Part::Kind::slice: window.slice(part.given); break;
      case Part::Kind::integer: window.pick(part.given); break;
      case Part::Kind::indices:
        arrays.push_back({part.array, static_cast<std::int64_t>(window.axis), x.shape()[window.axis], x.strides()[window.axis]});
        window.axis += 1;
        break;
      case Part::Kind::mask:
        add_mask(x, part, window.axis, arrays);
        window.axis += part.axes;
        break;
    }
  }
  if (!result.indexed) {
    result.view = window.made();
    return result;
  }
  Dims &shape = window.shape, &strides = window.strides;
  Dims chosen;
  for (const Along& along : arrays) chosen = broadcast_shape(chosen, along.indices.shape());
  result.indices = gathered(arrays, chosen);
  const std::int64_t count = element_count(chosen);
  const auto at = static_cast<std::ptrdiff_t>(place);
  IndexedMovement& movement = result.movement;
  movement.size = shape;
  movement.size.insert(movement.size.begin() + at, count);
  movement.indexed_stride = std::move(strides);
  movement.indexed_stride.insert(movement.indexed_stride.begin() + at, 0);
  movement.plain_stride = contiguous_strides(movement.size);
  movement.index_stride.assign(movement.size.size(), 0);
  movement.index_stride[place] = 1;
  movement.indexed_offset = window.offset;
  movement.index_step = count;
  for (const Along& along : arrays) {
    movement.weight.push_back(along.weight);
    movement.extent.push_back(along.size);
  }
  result.shape = std::move(shape);
  result.shape.insert(result.shape.begin() + at, chosen.begin(), chosen.end());
  return result;
}

// x[indices] of few whole numbers along the first axis of a dense array: the movement below, without making it ready.
std::optional<Tensor> picked_at_once(const Tensor& x, py::handle key) {
  const Tensor* given = held(key);
  if (given == nullptr || !is_integer(given->dtype()) || x.ndim() == 0 || x.size() == 0 || !x.contiguous()) return std::nullopt;
  const std::int64_t length = x.shape()[0], row = x.size() / length;
  if (given->size() > kFew || given->size() * row > kFew) return std::nullopt;
  const Tensor indices = contiguous(cast(*given, DType::i64));
  Dims shape = given->shape();
  shape.insert(shape.end(), x.shape().begin() + 1, x.shape().end());
  Tensor result = Tensor::empty(x.dtype(), std::move(shape));
  const auto bytes = row * static_cast<std::int64_t>(item_size(x.dtype()));
  for (std::int64_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices.data<const std::int64_t>()[i];
    if (index < -length || index >= length) out_of_range(index, 0, length);
    std::memcpy(result.raw() + i * bytes, x.raw() + (index < 0 ? index + length : index) * bytes,
                static_cast<std::size_t>(bytes));
  }
  return result;
}

std::int64_t elements_held(const Tensor& x) {
  return static_cast<std::int64_t>(x.storage()->size_bytes() / item_size(x.dtype()));
}

Tensor as_numbers(Tensor shown, py::handle key) {
  if (shown.ndim() > 0 || key.ptr() == Py_Ellipsis) return shown;
  if (PyTuple_Check(key.ptr()))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key.ptr()); ++i)
      if (PyTuple_GET_ITEM(key.ptr(), i) == Py_Ellipsis) return shown;
  Tensor copy = Tensor::empty(shown.dtype(), {});
  std::memcpy(copy.raw(), shown.raw(), item_size(shown.dtype()));
  return copy;
}

}  // namespace

// Results without dimensions are copies, as NumPy's scalars are, and views where the key has an ellipsis, as NumPy has them too.
Tensor get_item(const Tensor& x, py::handle key) {
  if (auto shown = plain_view(x, key)) return as_numbers(*std::move(shown), key);
  if (auto picked = picked_at_once(x, key)) return *std::move(picked);
  if (const Tensor* mask = held(key);
      mask != nullptr && mask->dtype() == DType::b8 && mask->ndim() > 0 && mask->shape() == x.shape() && x.contiguous()) {
    const Tensor inputs[] = {reshaped(x, {-1}), reshaped(*mask, {-1})};
    return evaluate_one("Compress", inputs);
  }
  const Picked picked = pick(x, key);
  if (!picked.indexed) return as_numbers(picked.view, key);
  Tensor result = Tensor::empty(x.dtype(), picked.shape);
  if (result.size() == 0) return result;
  const IndexedRaster raster(picked.movement, elements_held(x), result.size(), picked.indices.size(), true);
  raster.gather(picked.indices.data<const std::int64_t>(), x.storage()->data(), result.raw(), item_size(x.dtype()));
  return result;
}

py::tuple unstacked(const Tensor& x) {
  if (x.ndim() == 0) throw Error(ErrorKind::shape, "an array without dimensions has no parts");
  const Dims shape(x.shape().begin() + 1, x.shape().end()), strides(x.strides().begin() + 1, x.strides().end());
  py::tuple parts(static_cast<std::size_t>(x.shape()[0]));
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i] = view(x, shape, strides, x.offset() + static_cast<std::int64_t>(i) * x.strides()[0]);
  return parts;
}

void set_item(const Tensor& x, py::handle key, py::handle value) {
  Tensor source = as_tensor(value, x.dtype());
  Picked picked;
  if (auto shown = plain_view(x, key))
    picked.view = *std::move(shown);
  else
    picked = pick(x, key);
  // What is assigned may have more leading axes of 1 than the place.
  const std::size_t rank = picked.indexed ? picked.shape.size() : picked.view.shape().size();
  while (source.shape().size() > rank && source.shape()[0] == 1)
    source = view(source, Dims(source.shape().begin() + 1, source.shape().end()),
                  Dims(source.strides().begin() + 1, source.strides().end()), source.offset());
  if (!picked.indexed) return assign(source, picked.view);
  if (!x.storage() || !x.storage()->writable()) throw Error(ErrorKind::dtype, "the array is read-only; copy it first");
  const Dims strides = broadcast_strides(source.shape(), source.strides(), picked.shape);
  if (element_count(picked.shape) == 0) return;
  const Tensor wide = Tensor::empty(x.dtype(), picked.shape);  // a copy, which x's own elements do not overlap
  assign(source, wide);
  const IndexedRaster raster(picked.movement, elements_held(x), wide.size(), picked.indices.size(), false);
  raster.scatter(picked.indices.data<const std::int64_t>(), wide.raw(), x.storage()->data(), item_size(x.dtype()));
}

}  // namespace walle

// x[key] and x[key] = value as in NumPy: ints, slices, None and an ellipsis make a view; index arrays and masks make an indexed
// raster over that view, which is read or written in place.
#include <algorithm>
#include <cstring>
#include <optional>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
#include "geometry/indexed_raster.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// Returns whether an object that has a buffer and can be an index, as other libraries' arrays and numbers are, is an array.
bool has_dimensions(py::handle item) {
  return !PyLong_Check(item.ptr()) && py::hasattr(item, "ndim") && !py::object(item.attr("ndim")).equal(py::int_(0));
}

bool is_array_key(py::handle item) {
  return is_ndarray(item) || PyList_Check(item.ptr()) || PyBool_Check(item.ptr()) ||
         (PyObject_CheckBuffer(item.ptr()) && (!PyIndex_Check(item.ptr()) || has_dimensions(item)));
}
bool is_int_key(py::handle item) { return PyIndex_Check(item.ptr()) && !is_array_key(item); }

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

// Builder of a view of x, axis by axis.
struct ViewBuilder {
  const Tensor& x;
  std::size_t axis = 0;  // the next axis of x
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
  Tensor build() {
    if (element_count(shape) == 0) offset = 0;
    return view(x, std::move(shape), std::move(strides), offset);
  }
};

// Returns the view of a key that consists of ints, slices, None and at most one ellipsis; nothing for any other key.
std::optional<Tensor> plain_view(const Tensor& x, py::handle key) {
  const bool is_tuple = PyTuple_Check(key.ptr());
  const Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(key.ptr()) : 1;
  const auto item = [&](Py_ssize_t i) { return is_tuple ? PyTuple_GET_ITEM(key.ptr(), i) : key.ptr(); };
  std::size_t axes = 0, ellipses = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* one = item(i);
    if (one == Py_Ellipsis)
      ++ellipses;
    else if (PyLong_CheckExact(one) || PySlice_Check(one))
      ++axes;
    else if (one != Py_None)
      return std::nullopt;
  }
  const std::size_t rank = x.shape().size();
  if (axes > rank || ellipses > 1 || count + static_cast<Py_ssize_t>(rank) > 64) return std::nullopt;
  ViewBuilder builder{x};
  builder.shape.reserve(rank + static_cast<std::size_t>(count));
  builder.strides.reserve(rank + static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* one = item(i);
    if (one == Py_None)
      builder.add(1, 0);
    else if (one == Py_Ellipsis)
      builder.keep(rank - axes);
    else if (PySlice_Check(one))
      builder.slice(one);
    else
      builder.pick(one);
  }
  builder.keep(rank - builder.axis);
  return builder.build();
}

// Returns the flat row-major indices of a mask's true elements.
Tensor flat_indices(const Tensor& mask) {
  const Tensor dense = computed_contiguous(mask);
  const auto* flags = reinterpret_cast<const unsigned char*>(dense.raw());  // a borrowed buffer may hold bytes other than 0 and 1
  const std::int64_t size = dense.size();
  return computed(size, [&] {
    std::int64_t count = 0;
    run_stoppable(size, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) count += flags[i] != 0;
    });
    Tensor result = Tensor::empty(DType::i64, {count});
    std::int64_t* indices = result.data<std::int64_t>();
    std::int64_t found = 0;  // less than `count` if the buffer's owner clears flags after they were counted
    run_stoppable(size, 2, [=, &found](std::int64_t first, std::int64_t last) {
      std::int64_t next = found;  // a local copy stays in a register
      for (std::int64_t i = first; next < count && i < last; ++i) {
        indices[next] = i;
        next += flags[i] != 0;
      }
      found = next;
    });
    std::fill(indices + found, indices + count, 0);
    return result;
  });
}

// One item of a key, converted.
struct KeyPart {
  enum class Kind { integer, slice, new_axis, ellipsis, indices, mask } kind;
  py::handle item;
  Tensor array{};        // the indices or the mask
  std::size_t axes = 0;  // number of axes of x that it indexes
};

std::vector<KeyPart> parts_of(const Tensor& x, py::handle key) {
  std::vector<py::handle> items;
  if (PyTuple_Check(key.ptr()))
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(key)) items.push_back(item);
  else
    items.push_back(key);
  std::vector<KeyPart> parts;
  std::size_t axes = 0;
  bool ellipsis = false;
  for (const py::handle item : items) {
    KeyPart part{KeyPart::Kind::integer, item, {}, 1};
    if (item.is_none()) {
      part.kind = KeyPart::Kind::new_axis;
      part.axes = 0;
    } else if (item.ptr() == Py_Ellipsis) {
      if (ellipsis) throw py::index_error("an index may have only one ellipsis");
      ellipsis = true;
      part.kind = KeyPart::Kind::ellipsis;
      part.axes = 0;
    } else if (PySlice_Check(item.ptr())) {
      part.kind = KeyPart::Kind::slice;
    } else if (is_array_key(item)) {
      part.array = as_tensor(item);
      if (part.array.size() == 0 && PyList_Check(item.ptr())) part.array = cast(part.array, DType::i64);
      part.kind = part.array.dtype() == DType::b8 ? KeyPart::Kind::mask : KeyPart::Kind::indices;
      if (part.kind == KeyPart::Kind::mask) part.axes = part.array.shape().size();
      if (part.kind == KeyPart::Kind::indices && !is_integer(part.array.dtype()))
        throw py::index_error("index arrays must be of integers or bool, not " + std::string(dtype_name(part.array.dtype())));
    } else if (!is_int_key(item)) {
      throw py::index_error("an index may consist of ints, slices, None, an ellipsis, integer arrays and masks, not " +
                            std::string(Py_TYPE(item.ptr())->tp_name));
    }
    axes += part.axes;
    parts.push_back(std::move(part));
  }
  const std::size_t rank = x.shape().size();
  if (axes > rank)
    throw py::index_error("too many indices: " + std::to_string(axes) + " for an array of " + std::to_string(rank) +
                          " dimensions");
  const auto count = [&](auto... kinds) {
    return std::count_if(parts.begin(), parts.end(), [&](const KeyPart& part) { return ((part.kind == kinds) || ...); });
  };
  constexpr std::ptrdiff_t kMost = 64;  // NumPy's limit
  if (count(KeyPart::Kind::mask, KeyPart::Kind::indices) >= kMost ||
      count(KeyPart::Kind::new_axis) + static_cast<std::ptrdiff_t>(rank) > kMost)
    throw py::index_error("too many indices: an index has fewer than 64 arrays, and its result at most 64 axes");
  if (!ellipsis) parts.push_back({KeyPart::Kind::ellipsis, Py_Ellipsis, {}, 0});
  for (KeyPart& part : parts)
    if (part.kind == KeyPart::Kind::ellipsis) part.axes = rank - axes;
  return parts;
}

// Elements selected by a key: a view, or (with index arrays) the elements that an indexed movement reaches, in the order of
// `shape`.
struct Selection {
  Tensor view;  // defined if there are no index arrays
  bool indexed = false;
  IndexedMovement movement;
  Tensor indices;  // [arrays, elements of each]
  Dims shape;
};

// An array of indices along one axis of x, or along merged axes; `weight` is the stride between two indices, in elements.
struct IndexArray {
  Tensor indices;
  std::int64_t axis, size, weight;
};

void add_mask(const Tensor& x, const KeyPart& part, std::size_t axis, std::vector<IndexArray>& arrays) {
  const Dims masked(x.shape().begin() + static_cast<std::ptrdiff_t>(axis),
                    x.shape().begin() + static_cast<std::ptrdiff_t>(axis + part.axes));
  if (part.array.shape() != masked)
    throw py::index_error("a mask of shape " + to_string(part.array.shape()) + " does not match the indexed axes of shape " +
                          to_string(masked));
  const Tensor flat = flat_indices(part.array);
  if (part.axes == 0) {  // True or False: the whole of x or nothing of it, along a new axis
    arrays.push_back({flat, static_cast<std::int64_t>(axis), 1, 0});
    return;
  }
  bool mergeable = true;
  for (std::size_t i = axis; i + 1 < axis + part.axes; ++i)
    mergeable = mergeable && x.strides()[i] == x.strides()[i + 1] * x.shape()[i + 1];
  if (mergeable) {
    arrays.push_back({flat, static_cast<std::int64_t>(axis), element_count(masked), x.strides()[axis + part.axes - 1]});
    return;
  }
  std::int64_t below = element_count(masked);
  for (std::size_t i = 0; i < part.axes; ++i) {
    Tensor along = Tensor::empty(DType::i64, flat.shape());
    below = masked[i] == 0 ? 0 : below / masked[i];
    computed(flat.size(), [&] {
      run_stoppable(flat.size(), 4, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t j = first; j < last; ++j)
          along.data<std::int64_t>()[j] = flat.data<std::int64_t>()[j] / below % masked[i];
      });
      return true;
    });
    arrays.push_back({along, static_cast<std::int64_t>(axis + i), masked[i], x.strides()[axis + i]});
  }
}

// Returns the indices of all arrays, broadcast against each other, as rows of one array. Throws IndexError for one out of range.
Tensor joined_indices(const std::vector<IndexArray>& arrays, const Dims& shape) {
  const std::int64_t count = element_count(shape);
  Tensor all = Tensor::empty(DType::i64, {static_cast<std::int64_t>(arrays.size()), count});
  return computed(all.size(), [&] {
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      const IndexArray& array = arrays[k];
      const std::int64_t offset = static_cast<std::int64_t>(k) * count;
      assign(cast(array.indices, DType::i64), view(all, shape, contiguous_strides(shape), offset));
      const std::int64_t* index = all.data<std::int64_t>() + offset;
      run_stoppable(count, 1, [&](std::int64_t first, std::int64_t last) {
        bool in_range = true;
        for (std::int64_t i = first; i < last; ++i) in_range &= index[i] >= -array.size && index[i] < array.size;
        for (std::int64_t i = first; !in_range && i < last; ++i)
          if (index[i] < -array.size || index[i] >= array.size) out_of_range(index[i], array.axis, array.size);
      });
    }
    return std::move(all);
  });
}

Selection select(const Tensor& x, py::handle key) {
  const std::vector<KeyPart> parts = parts_of(x, key);
  Selection result;
  for (const KeyPart& part : parts)
    result.indexed = result.indexed || part.kind == KeyPart::Kind::indices || part.kind == KeyPart::Kind::mask;
  ViewBuilder builder{x};
  std::vector<IndexArray> arrays;
  // Position of the index arrays' axes in the result: at the first array, or first where another part separates two arrays.
  std::size_t place = 0;
  enum { before, within, after } where = before;
  for (const KeyPart& part : parts) {
    const bool array = part.kind == KeyPart::Kind::indices || part.kind == KeyPart::Kind::mask ||
                       (result.indexed && part.kind == KeyPart::Kind::integer);
    if (array) {
      if (where == before) place = builder.shape.size();
      if (where == after) place = 0;
      where = within;
    } else if (where == within && !(part.kind == KeyPart::Kind::ellipsis && part.axes == 0 && &part == &parts.back())) {
      where = after;
    }
    switch (part.kind) {
      case KeyPart::Kind::new_axis: builder.add(1, 0); break;
      case KeyPart::Kind::ellipsis: builder.keep(part.axes); break;
      case KeyPart::Kind::slice: builder.slice(part.item); break;
      case KeyPart::Kind::integer: builder.pick(part.item); break;
      case KeyPart::Kind::indices:
        arrays.push_back(
            {part.array, static_cast<std::int64_t>(builder.axis), x.shape()[builder.axis], x.strides()[builder.axis]});
        builder.axis += 1;
        break;
      case KeyPart::Kind::mask:
        add_mask(x, part, builder.axis, arrays);
        builder.axis += part.axes;
        break;
    }
  }
  if (!result.indexed) {
    result.view = builder.build();
    return result;
  }
  Dims &shape = builder.shape, &strides = builder.strides;
  Dims index_shape;
  for (const IndexArray& array : arrays) index_shape = broadcast_shape(index_shape, array.indices.shape());
  result.indices = joined_indices(arrays, index_shape);
  const std::int64_t count = element_count(index_shape);
  const auto at = static_cast<std::ptrdiff_t>(place);
  IndexedMovement& movement = result.movement;
  movement.size = shape;
  movement.size.insert(movement.size.begin() + at, count);
  movement.indexed_stride = std::move(strides);
  movement.indexed_stride.insert(movement.indexed_stride.begin() + at, 0);
  movement.plain_stride = contiguous_strides(movement.size);
  movement.index_stride.assign(movement.size.size(), 0);
  movement.index_stride[place] = 1;
  movement.indexed_offset = builder.offset;
  movement.index_step = count;
  for (const IndexArray& array : arrays) {
    movement.weight.push_back(array.weight);
    movement.extent.push_back(array.size);
  }
  result.shape = std::move(shape);
  result.shape.insert(result.shape.begin() + at, index_shape.begin(), index_shape.end());
  return result;
}

// Copies the rows of the indices, which are in range; a row has `fixed` bytes, or `bytes` where that is 0.
template <std::size_t fixed>
void gather_rows(const std::byte* from, const std::int64_t* index, std::int64_t count, std::int64_t length, std::size_t bytes,
                 std::byte* to) {
  const std::size_t row = fixed != 0 ? fixed : bytes;
  for (std::int64_t i = 0; i < count; ++i, to += row)
    std::memcpy(to, from + static_cast<std::size_t>(index[i] < 0 ? index[i] + length : index[i]) * row, row);
}

// Returns x[indices] for a few integers along the first axis of a dense array, without creating an indexed raster; nothing for
// other keys.
std::optional<Tensor> fast_gather(const Tensor& x, py::handle key) {
  const Tensor* given = tensor_or_null(key);
  if (given == nullptr || !is_integer(given->dtype()) || x.ndim() == 0 || x.size() == 0 || !x.contiguous()) return std::nullopt;
  const std::int64_t length = x.shape()[0], row = x.size() / length;
  if (given->size() > kFastPathElements || given->size() * row > kFastPathElements) return std::nullopt;
  const Tensor indices = contiguous(cast(*given, DType::i64));
  Dims shape = given->shape();
  shape.insert(shape.end(), x.shape().begin() + 1, x.shape().end());
  Tensor result = Tensor::empty(x.dtype(), std::move(shape));
  const auto bytes = static_cast<std::size_t>(row) * item_size(x.dtype());
  const std::int64_t* index = indices.data<const std::int64_t>();
  const std::int64_t count = indices.size();
  for (std::int64_t i = 0; i < count; ++i)
    if (index[i] < -length || index[i] >= length) out_of_range(index[i], 0, length);
  switch (bytes) {
    case 1: gather_rows<1>(x.raw(), index, count, length, bytes, result.raw()); break;
    case 4: gather_rows<4>(x.raw(), index, count, length, bytes, result.raw()); break;
    case 8: gather_rows<8>(x.raw(), index, count, length, bytes, result.raw()); break;
    default: gather_rows<0>(x.raw(), index, count, length, bytes, result.raw());
  }
  return result;
}

std::int64_t storage_elements(const Tensor& x) {
  return static_cast<std::int64_t>(x.storage()->size_bytes() / item_size(x.dtype()));
}

// Returns whether the result of a key is a separate number, as NumPy's scalars: where it has no dimensions, and the key no
// ellipsis.
bool is_number_key(const Tensor& view_of_x, py::handle key) {
  if (view_of_x.ndim() > 0 || key.ptr() == Py_Ellipsis) return false;
  if (PyTuple_Check(key.ptr()))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key.ptr()); ++i)
      if (PyTuple_GET_ITEM(key.ptr(), i) == Py_Ellipsis) return false;
  return true;
}

Tensor copy_if_scalar(Tensor view_of_x, py::handle key) {
  if (!is_number_key(view_of_x, key)) return view_of_x;
  Tensor copy = Tensor::empty(view_of_x.dtype(), {});
  std::memcpy(copy.raw(), view_of_x.raw(), item_size(view_of_x.dtype()));
  return copy;
}

}  // namespace

namespace {

// Returns whether other code may run, and change the array, while a key is converted: for all but numbers, slices and arrays for
// which the GIL is not released.
bool may_run_others(py::handle key) {
  const auto is_quick = [](PyObject* item) {
    if (is_ndarray(item)) return tensor_of(item).size() < kReleaseGil;
    return PyLong_CheckExact(item) || PySlice_Check(item) || item == Py_None || item == Py_Ellipsis;
  };
  if (!PyTuple_Check(key.ptr())) return !is_quick(key.ptr());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key.ptr()); ++i)
    if (!is_quick(PyTuple_GET_ITEM(key.ptr(), i))) return true;
  return false;
}

}  // namespace

Tensor get_item(const Tensor& array, py::handle key) {
  if (auto view_of_x = plain_view(array, key)) return copy_if_scalar(*std::move(view_of_x), key);
  if (auto result = fast_gather(array, key)) return *std::move(result);
  std::optional<Tensor> own;  // another thread may replace the array's (setflags) while the GIL is released
  if (may_run_others(key)) own = array;
  const Tensor& x = own ? *own : array;
  if (const Tensor* mask = tensor_or_null(key);
      mask != nullptr && mask->dtype() == DType::b8 && mask->ndim() > 0 && mask->shape() == x.shape() && x.contiguous()) {
    const Tensor inputs[] = {reshaped(x, {-1}), reshaped(*mask, {-1})};
    return computed(x.size(), [&] { return evaluate_one("Compress", inputs); });
  }
  const Selection selection = select(x, key);
  if (!selection.indexed) return copy_if_scalar(selection.view, key);
  Tensor result = Tensor::empty(x.dtype(), selection.shape);
  if (result.size() == 0) return result;
  const IndexedRaster raster(selection.movement, storage_elements(x), result.size(), selection.indices.size(), true);
  return computed(result.size(), [&, storage = x.storage(), item = item_size(x.dtype())] {
    raster.gather(selection.indices.data<const std::int64_t>(), storage->data(), result.raw(), item);
    throw_if_stopped();  // what it gave may not be whole
    return std::move(result);
  });
}

PyObject* new_element(PyObject* array, std::int64_t index) {
  const Tensor& x = tensor_of(array);
  const std::int64_t offset = index * x.strides()[0];
  if (x.ndim() == 1) return new_number(x.dtype(), x.raw() + offset * static_cast<std::int64_t>(item_size(x.dtype())));
  return new_view(view(x, Dims(x.shape().begin() + 1, x.shape().end()), Dims(x.strides().begin() + 1, x.strides().end()),
                       x.offset() + offset),
                  array);
}

PyObject* new_item(PyObject* array, PyObject* key) {
  const Tensor& x = tensor_of(array);
  if (PyLong_CheckExact(key) && x.ndim() > 0) return new_element(array, integer_key(key, 0, x.shape()[0]));
  if (auto view_of_x = plain_view(x, key))
    return is_number_key(*view_of_x, key) ? new_number(x.dtype(), view_of_x->raw()) : new_view(*std::move(view_of_x), array);
  return new_view(get_item(x, key), array);
}

py::tuple unstack(const Tensor& array) {
  const Tensor x = array;  // a copy: a signal's handler may replace the array's tensor (setflags)
  if (x.ndim() == 0) throw Error(ErrorKind::shape, "cannot unstack an array without dimensions");
  const Dims shape(x.shape().begin() + 1, x.shape().end()), strides(x.strides().begin() + 1, x.strides().end());
  const std::int64_t count = x.shape()[0];
  py::tuple parts(static_cast<std::size_t>(count));
  if (count == 0) return parts;
  PyObject_GC_UnTrack(parts.ptr());  // untracked until it is whole: handlers of signals cannot find it
  ObjectPoll poll;
  for (std::int64_t i = 0; i < count; ++i) {
    poll.proceed();
    PyTuple_SET_ITEM(parts.ptr(), i, new_array(view(x, shape, strides, x.offset() + i * x.strides()[0])));
  }
  PyObject_GC_Track(parts.ptr());
  return parts;
}

namespace {

// Sets one element of a vector to a number; returns false for other keys and values.
bool set_number(const Tensor& x, py::handle key, py::handle value) {
  if (!PyLong_CheckExact(key.ptr()) || x.ndim() != 1 || !(PyFloat_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr())) ||
      compute_index(x.dtype()) < 0 || !x.storage()->writable())
    return false;
  const std::int64_t index = integer_key(key, 0, x.shape()[0]);
  write_number(value, x.dtype(), x.raw() + index * x.strides()[0] * static_cast<std::int64_t>(item_size(x.dtype())));
  return true;
}

}  // namespace

void set_item(const Tensor& array, py::handle key, py::handle value) {
  if (array.storage() && set_number(array, key, value)) return;
  Tensor source = as_tensor(value, array.dtype());
  std::optional<Tensor> own;  // see get_item
  Selection selection;
  if (auto view_of_x = plain_view(array, key)) {
    selection.view = *std::move(view_of_x);
  } else {
    if (may_run_others(key)) own = array;
    selection = select(own ? *own : array, key);
  }
  const Tensor& x = own ? *own : array;
  // The value may have more leading axes of size 1 than the selection.
  const std::size_t rank = selection.indexed ? selection.shape.size() : selection.view.shape().size();
  while (source.shape().size() > rank && source.shape()[0] == 1)
    source = view(source, Dims(source.shape().begin() + 1, source.shape().end()),
                  Dims(source.strides().begin() + 1, source.strides().end()), source.offset());
  if (!selection.indexed) return computed_assign(source, selection.view);
  if (!x.storage() || !x.storage()->writable())
    throw Error(ErrorKind::dtype, "cannot assign to a read-only array; copy it first");
  const Dims strides = broadcast_strides(source.shape(), source.strides(), selection.shape);
  if (element_count(selection.shape) == 0) return;
  const Tensor values = Tensor::empty(x.dtype(), selection.shape);  // a copy, because `source` may overlap x
  const IndexedRaster raster(selection.movement, storage_elements(x), values.size(), selection.indices.size(), false);
  computed(values.size(), [&, storage = x.storage(), item = item_size(x.dtype())] {
    assign(source, values);
    raster.scatter(selection.indices.data<const std::int64_t>(), values.raw(), storage->data(), item);
    throw_if_stopped();
    return true;
  });
}

}  // namespace walle

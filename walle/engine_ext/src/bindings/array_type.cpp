// Slots of walle.np.ndarray's type: operators, comparison, indexing, iteration and conversion to numbers, without pybind11
// between.
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/recording.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// An operand of another type is left to that type's own operators; a parameter, which has a buffer too, to its recording ones.
bool is_operand(PyObject* value) {
  return is_ndarray(value) || is_number(value) || PyList_Check(value) || PyTuple_Check(value) ||
         (PyObject_CheckBuffer(value) && !is_recorded(value));
}

// The operators of binary slots, in the order of BinarySlot.
constexpr const char* kBinary[] = {"Add",        "Sub",       "Mul",        "Div",       "FloorDiv",   "FloorMod", "Power",
                                   "BitwiseAnd", "BitwiseOr", "BitwiseXor", "ShiftLeft", "ShiftRight", "MatMul"};
enum BinarySlot { add, sub, mul, div, floor_div, floor_mod, power, bit_and, bit_or, bit_xor, shift_left, shift_right, matmul };

template <BinarySlot slot>
const OpDef& binary_operator() {
  static const OpDef& op = operator_named(kBinary[slot]);
  return op;
}

template <BinarySlot slot>
PyObject* binary_slot(PyObject* a, PyObject* b) {
  if (!is_operand(a) || !is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  return translated([&] { return new_array(binary(binary_operator<slot>(), a, b)); });
}

// Sums and products of bools are numbers here, and bools again where they are stored in place: `or` and `and`, as in NumPy.
template <BinarySlot slot>
bool is_bool_again(const Tensor& target, PyObject* b) {
  return (slot == add || slot == mul) && target.dtype() == DType::b8 && as_tensor(b).dtype() == DType::b8;
}

template <BinarySlot slot>
PyObject* in_place_slot(PyObject* a, PyObject* b) {
  if (!is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  return translated([&] {
    const Tensor result = binary(binary_operator<slot>(), a, b);
    const Tensor& target = tensor_of(a);
    if (!holds_kind(target.dtype(), result.dtype()) && !is_bool_again<slot>(target, b))
      throw Error(ErrorKind::dtype, "an array of dtype " + std::string(dtype_name(target.dtype())) +
                                        " cannot hold the result, of dtype " + std::string(dtype_name(result.dtype())) +
                                        ", in place; write a = a + b");
    if (slot == matmul && result.shape() != target.shape())  // the assignment would broadcast
      throw Error(ErrorKind::shape, "a product of shape " + to_string(result.shape()) + " does not fit into an array of shape " +
                                        to_string(target.shape()) + " in place; write a = a @ b");
    computed_assign(computed_cast(result, target.dtype()), target);
    return Py_NewRef(a);
  });
}

template <BinarySlot slot, bool in_place = false>
PyObject* power_slot(PyObject* a, PyObject* b, PyObject* modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return in_place ? in_place_slot<slot>(a, b) : binary_slot<slot>(a, b);
}

PyObject* divmod_slot(PyObject* a, PyObject* b) {
  if (!is_operand(a) || !is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  return translated([&]() -> PyObject* {
    const auto quotient = py::reinterpret_steal<py::object>(new_array(binary(binary_operator<floor_div>(), a, b)));
    const auto rest = py::reinterpret_steal<py::object>(new_array(binary(binary_operator<floor_mod>(), a, b)));
    return PyTuple_Pack(2, quotient.ptr(), rest.ptr());
  });
}

enum UnarySlot { neg, absolute, invert };

template <UnarySlot slot>
PyObject* unary_slot(PyObject* self) {
  static const OpDef& op = operator_named(slot == neg ? "Neg" : slot == absolute ? "Abs" : "BitwiseNot");
  return translated([&] { return new_array(unary(op, tensor_of(self))); });
}

PyObject* positive_slot(PyObject* self) {
  return translated([&] { return new_array(copy_of(tensor_of(self))); });
}

PyObject* compare_slot(PyObject* a, PyObject* b, int comparison) {
  // Indexed from Py_LT.
  constexpr const char* kNames[] = {"Less", "LessOrEqual", "Equal", "NotEqual", "Greater", "GreaterOrEqual"};
  if (!is_operand(b)) {
    if ((comparison != Py_EQ && comparison != Py_NE) || is_recorded(b)) Py_RETURN_NOTIMPLEMENTED;
    return translated([&] {  // no element equals an object that is not a number
      const Tensor result = Tensor::empty(DType::b8, tensor_of(a).shape());
      computed_assign(scalar(py::bool_(comparison == Py_NE), DType::b8), result);
      return new_array(result);
    });
  }
  return translated([&] {
    static const OpDef* const ops[] = {&operator_named(kNames[0]), &operator_named(kNames[1]), &operator_named(kNames[2]),
                                       &operator_named(kNames[3]), &operator_named(kNames[4]), &operator_named(kNames[5])};
    return new_array(binary(*ops[comparison], a, b));
  });
}

// Returns the only element as a Python number.
py::object item(PyObject* self) {
  const auto* array = reinterpret_cast<const ArrayObject*>(self);
  return array->has_number ? element(array->dtype, array->number) : only_element(array->tensor);
}

int truth_slot(PyObject* self) {
  const py::object result = py::reinterpret_steal<py::object>(translated([&]() -> PyObject* {
    const Tensor& x = reinterpret_cast<const ArrayObject*>(self)->tensor;
    if (!reinterpret_cast<const ArrayObject*>(self)->has_number && x.size() != 1)
      throw Error(ErrorKind::shape,
                  "the truth value of an array of shape " + to_string(x.shape()) + " is ambiguous; use any() or all()");
    return item(self).release().ptr();
  }));
  return result ? PyObject_IsTrue(result.ptr()) : -1;
}

PyObject* float_slot(PyObject* self) {
  return translated([&] { return PyNumber_Float(item(self).ptr()); });
}

PyObject* int_slot(PyObject* self) {
  return translated([&] { return PyNumber_Long(item(self).ptr()); });
}

PyObject* index_slot(PyObject* self) {
  return translated([&] {
    const auto* array = reinterpret_cast<const ArrayObject*>(self);
    if (!is_integer(array->has_number ? array->dtype : array->tensor.dtype()) ||
        (!array->has_number && array->tensor.ndim() != 0))
      throw py::type_error("only an integer array without dimensions can be used as an index");
    return PyNumber_Long(item(self).ptr());
  });
}

// Equality is elementwise, so only an array without dimensions can be equal to its number and share its hash.
Py_hash_t hash_slot(PyObject* self) {
  const py::object number = py::reinterpret_steal<py::object>(translated([&]() -> PyObject* {
    if (tensor_of(self).ndim() != 0) throw py::type_error("an array with dimensions is not hashable");
    return item(self).release().ptr();
  }));
  return number ? PyObject_Hash(number.ptr()) : -1;
}

// The texts are made in walle/engine_ext/np/printing.py.
template <bool is_repr>
PyObject* text_slot(PyObject* self) {
  return translated(
      [&] { return functions().attr("printing").attr(is_repr ? "array_repr" : "array_str")(py::handle(self)).release().ptr(); });
}

Py_ssize_t length_slot(PyObject* self) {
  const auto* array = reinterpret_cast<const ArrayObject*>(self);
  if (!array->has_number && array->tensor.ndim() > 0) return static_cast<Py_ssize_t>(array->tensor.shape()[0]);
  PyErr_SetString(PyExc_TypeError, "len() of an array without dimensions");
  return -1;
}

int contains_slot(PyObject* self, PyObject* value) {
  const py::object found = py::reinterpret_steal<py::object>(translated([&]() -> PyObject* {
    static const OpDef& equal = operator_named("Equal");
    if (!is_operand(value)) Py_RETURN_FALSE;
    return new_array(reduce("Any", binary(equal, self, value), py::none(), false));
  }));
  return found ? PyObject_IsTrue(found.ptr()) : -1;
}

PyObject* get_item_slot(PyObject* self, PyObject* key) {
  return translated([&] {
    if (py::object item = recorded_or_null("get_item", {key}, py::handle(self), py::handle(key))) return item.release().ptr();
    return new_item(self, key);
  });
}

int set_item_slot(PyObject* self, PyObject* key, PyObject* value) {
  if (value == nullptr) {
    PyErr_SetString(PyExc_TypeError, "elements of an array cannot be deleted; use walle.np.delete");
    return -1;
  }
  const auto done = py::reinterpret_steal<py::object>(translated([&] {
    set_item(tensor_of(self), key, value);
    return Py_NewRef(Py_None);
  }));
  return done ? 0 : -1;
}

PyObject* iterate_slot(PyObject* self) {
  return translated([&]() -> PyObject* {
    const Tensor& x = tensor_of(self);
    if (x.ndim() == 0) throw py::type_error("iteration over an array without dimensions");
    auto* iterator = PyObject_New(IteratorObject, array_types().iterator);
    if (iterator == nullptr) return nullptr;
    iterator->array = Py_NewRef(self);
    iterator->length = x.shape()[0];
    iterator->next = 0;
    return reinterpret_cast<PyObject*>(iterator);
  });
}

PyObject* next_slot(PyObject* self) {
  auto* iterator = reinterpret_cast<IteratorObject*>(self);
  if (iterator->next >= iterator->length) return nullptr;
  return translated([&] { return new_element(iterator->array, iterator->next++); });
}

void dealloc_iterator(PyObject* self) {
  Py_DECREF(reinterpret_cast<IteratorObject*>(self)->array);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* new_slot(PyTypeObject*, PyObject* args, PyObject* keywords) {
  PyObject* buffer = nullptr;
  static const char* const names[] = {"buffer", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:ndarray", const_cast<char**>(names), &buffer)) return nullptr;
  return translated([&] { return new_array(tensor_from_buffer(buffer)); });
}

template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyType_Slot* array_slots() {
  static PyType_Slot slots[] = {
      {Py_tp_doc,
       const_cast<char*>("An array of numbers of one dtype, with NumPy's methods. ndarray(buffer) views any object that "
                         "supports the buffer protocol.")},
      {Py_tp_new, slot(new_slot)},
      {Py_tp_dealloc, slot(dealloc_array)},
      {Py_tp_getset, array_attributes()},
      {Py_tp_methods, array_methods()},
      {Py_tp_repr, slot(text_slot<true>)},
      {Py_tp_str, slot(text_slot<false>)},
      {Py_tp_hash, slot(hash_slot)},
      {Py_tp_richcompare, slot(compare_slot)},
      {Py_tp_iter, slot(iterate_slot)},
      {Py_mp_length, slot(length_slot)},
      {Py_mp_subscript, slot(get_item_slot)},
      {Py_mp_ass_subscript, slot(set_item_slot)},
      {Py_sq_length, slot(length_slot)},
      {Py_sq_contains, slot(contains_slot)},
      {Py_bf_getbuffer, slot(get_buffer)},
      {Py_bf_releasebuffer, slot(release_buffer)},
      {Py_nb_bool, slot(truth_slot)},
      {Py_nb_float, slot(float_slot)},
      {Py_nb_int, slot(int_slot)},
      {Py_nb_index, slot(index_slot)},
      {Py_nb_negative, slot(unary_slot<neg>)},
      {Py_nb_positive, slot(positive_slot)},
      {Py_nb_absolute, slot(unary_slot<absolute>)},
      {Py_nb_invert, slot(unary_slot<invert>)},
      {Py_nb_add, slot(binary_slot<add>)},
      {Py_nb_subtract, slot(binary_slot<sub>)},
      {Py_nb_multiply, slot(binary_slot<mul>)},
      {Py_nb_true_divide, slot(binary_slot<div>)},
      {Py_nb_floor_divide, slot(binary_slot<floor_div>)},
      {Py_nb_remainder, slot(binary_slot<floor_mod>)},
      {Py_nb_power, slot(power_slot<power>)},
      {Py_nb_divmod, slot(divmod_slot)},
      {Py_nb_and, slot(binary_slot<bit_and>)},
      {Py_nb_or, slot(binary_slot<bit_or>)},
      {Py_nb_xor, slot(binary_slot<bit_xor>)},
      {Py_nb_lshift, slot(binary_slot<shift_left>)},
      {Py_nb_rshift, slot(binary_slot<shift_right>)},
      {Py_nb_matrix_multiply, slot(binary_slot<matmul>)},
      {Py_nb_inplace_add, slot(in_place_slot<add>)},
      {Py_nb_inplace_subtract, slot(in_place_slot<sub>)},
      {Py_nb_inplace_multiply, slot(in_place_slot<mul>)},
      {Py_nb_inplace_matrix_multiply, slot(in_place_slot<matmul>)},
      {Py_nb_inplace_true_divide, slot(in_place_slot<div>)},
      {Py_nb_inplace_floor_divide, slot(in_place_slot<floor_div>)},
      {Py_nb_inplace_remainder, slot(in_place_slot<floor_mod>)},
      {Py_nb_inplace_power, slot(power_slot<power, true>)},
      {Py_nb_inplace_and, slot(in_place_slot<bit_and>)},
      {Py_nb_inplace_or, slot(in_place_slot<bit_or>)},
      {Py_nb_inplace_xor, slot(in_place_slot<bit_xor>)},
      {Py_nb_inplace_lshift, slot(in_place_slot<shift_left>)},
      {Py_nb_inplace_rshift, slot(in_place_slot<shift_right>)},
      {0, nullptr}};
  return slots;
}

PyType_Slot* array_iterator_slots() {
  static PyType_Slot slots[] = {{Py_tp_dealloc, slot(dealloc_iterator)},
                                {Py_tp_iter, slot(PyObject_SelfIter)},
                                {Py_tp_iternext, slot(next_slot)},
                                {0, nullptr}};
  return slots;
}

}  // namespace walle

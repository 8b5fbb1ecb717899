#include "bindings/deploy/places.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/blake2b.h"

namespace walle {

namespace {

constexpr int kPlaceBits = 53;
constexpr std::uint64_t kPlaces = std::uint64_t{1} << kPlaceBits;
constexpr std::size_t kMostDraws = 255;  // most draws of a group

struct Draw {
  std::string release;  // name with the NUL behind it
  std::uint64_t below;
};

struct PlacesObject {
  PyObject_HEAD std::vector<Draw>* draws;
};

PlacesObject* places_of(PyObject* self) { return reinterpret_cast<PlacesObject*>(self); }

PyObject* places_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyObject *releases, *below;
  static const char* names[] = {"releases", "below", nullptr};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!:Places", const_cast<char**>(names), &PyList_Type, &releases,
                                   &PyList_Type, &below))
    return nullptr;
  if (PyList_GET_SIZE(releases) != PyList_GET_SIZE(below)) {
    PyErr_SetString(PyExc_ValueError, "Places needs as many numbers as releases");
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  try {
    auto* draws = places_of(self)->draws = new std::vector<Draw>;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(releases); ++i) {
      PyObject* release = PyList_GET_ITEM(releases, i);
      const std::uint64_t number = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(below, i));
      if (PyErr_Occurred() || !PyBytes_Check(release) || number > kPlaces) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a draw is the bytes of a release, and a number up to 2^53");
        Py_DECREF(self);
        return nullptr;
      }
      draws->push_back(
          {std::string(PyBytes_AS_STRING(release), static_cast<std::size_t>(PyBytes_GET_SIZE(release))) + '\0', number});
    }
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

void places_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete places_of(self)->draws;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* places_first(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyBytes_Check(arguments[0]) || !PyBytes_Check(arguments[1]) ||
      PyBytes_GET_SIZE(arguments[1]) % static_cast<Py_ssize_t>(sizeof(std::uint32_t)) != 0) {
    PyErr_SetString(PyExc_TypeError, "first() takes the bytes of a device's id, and those of 32-bit numbers of draws");
    return nullptr;
  }
  const std::vector<Draw>& draws = *places_of(self)->draws;
  const auto* device = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(arguments[0]));
  const auto device_size = static_cast<std::size_t>(PyBytes_GET_SIZE(arguments[0]));
  const char* groups = PyBytes_AS_STRING(arguments[1]);
  const auto numbers = static_cast<std::size_t>(PyBytes_GET_SIZE(arguments[1])) / sizeof(std::uint32_t);
  const auto number_at = [groups](std::size_t i) {
    std::uint32_t number;
    std::memcpy(&number, groups + i * sizeof number, sizeof number);
    return number;
  };
  try {
    std::vector<MessageParts> messages;
    std::vector<std::uint64_t> digests(numbers);
    messages.reserve(numbers);
    std::size_t ends = 0;
    for (std::size_t i = 0, size = 0; i < numbers; ++i) {
      const std::uint32_t number = number_at(i);
      if (number >> 1 >= draws.size() || ++size > kMostDraws) {
        PyErr_Format(PyExc_IndexError, "draw %u is unknown, or a group has more than %zu", number >> 1, kMostDraws);
        return nullptr;
      }
      if (number & 1) size = 0, ++ends;
      const std::string& release = draws[number >> 1].release;
      messages.push_back({reinterpret_cast<const unsigned char*>(release.data()), release.size(), device, device_size});
    }
    if (numbers > 0 && (number_at(numbers - 1) & 1) == 0) {
      PyErr_SetString(PyExc_ValueError, "the last group does not end");
      return nullptr;
    }
    blake2b_64(messages.data(), numbers, digests.data());
    PyObject* found = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(ends));
    if (found == nullptr) return nullptr;
    char* out = PyBytes_AS_STRING(found);
    std::uint8_t at = 0;  // position in the group
    bool is_covered = false;
    for (std::size_t i = 0; i < numbers; ++i) {
      const std::uint32_t number = number_at(i);
      is_covered = is_covered || digests[i] >> (64 - kPlaceBits) < draws[number >> 1].below;
      if (!is_covered) ++at;
      if ((number & 1) == 0) continue;
      *out++ = static_cast<char>(at);
      at = 0, is_covered = false;
    }
    return found;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

Py_ssize_t places_length(PyObject* self) { return static_cast<Py_ssize_t>(places_of(self)->draws->size()); }

PyMethodDef places_methods[] = {
    {"first", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(places_first)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot places_slots[] = {{Py_tp_new, reinterpret_cast<void*>(places_new)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(places_dealloc)},
                              {Py_tp_methods, places_methods},
                              {Py_sq_length, reinterpret_cast<void*>(places_length)},
                              {0, nullptr}};
PyType_Spec places_spec = {"walle.engine_ext._core.Places", sizeof(PlacesObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, places_slots};

}  // namespace

int add_places_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&places_spec);
  const int failed = type == nullptr ? -1 : PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
  Py_XDECREF(type);
  return failed;
}

}  // namespace walle

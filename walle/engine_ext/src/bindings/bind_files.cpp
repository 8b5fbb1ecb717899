// Bindings of image files, used by walle/engine_ext/cv/files.py.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/released_gil.h"
#include "files/image_file.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

void bind_files(py::module_& module) {
  module.def("image_formats", [] {
    py::list names;
    for (const auto name : image_formats()) names.append(std::string(name));
    return py::tuple(names);
  });
  module.def(
      "decode_image",
      [](const std::string& format, const py::bytes& data, bool grey, std::int64_t max_pixels) {
        const std::string_view bytes = data;
        try {
          return computed_without_gil(
              [&] { return decode_image(format, std::as_bytes(std::span(bytes.data(), bytes.size())), grey, max_pixels); });
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::model) throw py::value_error(error.what());
          throw;
        }
      },
      py::arg("format"), py::arg("data"), py::arg("grey"), py::arg("max_pixels") = kMaxPixels);
  module.def(
      "encode_image",
      [](const std::string& format, const Tensor& array, int level) {
        const Tensor image = array;  // a copy: another thread may replace the array's tensor while the GIL is released
        const std::vector<std::byte> bytes = computed_without_gil([&] { return encode_image(format, contiguous(image), level); });
        return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      },
      py::arg("format"), py::arg("image"), py::arg("level"));
}

}  // namespace walle

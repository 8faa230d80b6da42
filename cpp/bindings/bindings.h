#pragma once

#include <pybind11/pybind11.h>

namespace dflash2 {

void register_errors(pybind11::module_ & module);
void register_options(pybind11::module_ & module);
void register_results(pybind11::module_ & module);
void register_engine(pybind11::module_ & module);
void register_system(pybind11::module_ & module);

}  // namespace dflash2

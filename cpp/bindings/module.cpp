#include "bindings.h"

PYBIND11_MODULE(_core, module) {
    module.doc() = "The native engine of dflash2. Private: use the classes of the package.";
    dflash2::register_errors(module);
    dflash2::register_options(module);
    dflash2::register_results(module);
    dflash2::register_engine(module);
    dflash2::register_system(module);
}

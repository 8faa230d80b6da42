#include "heap.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace dflash2 {

size_t heap_bytes() {
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
#else
    return 0;
#endif
}

}  // namespace dflash2

// The element types and reductions of railhead.h: sizes, and names for error texts.
#ifndef RAILHEAD_CLIENT_BASE_ELEMENT_TYPES_H_
#define RAILHEAD_CLIENT_BASE_ELEMENT_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "railhead.h"

namespace railhead::client {

// Bytes of an element; 0 if the number is not a type.
size_t sizeOf(rh_dtype dtype);
// "f32" and so on; "no type".
const char* dtypeName(uint32_t dtype);
// "sum" and so on; "no op".
const char* reductionName(uint32_t reduction);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_ELEMENT_TYPES_H_

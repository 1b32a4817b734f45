// The kernels as the CUDA compiler made them, in this library's read-only data.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_IMAGES_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_IMAGES_H_

#include <stdint.h>

namespace railhead::client::cuda {

// The code for a GPU of that architecture (10 times major + minor compute capability): machine code if there is some for exactly this
// architecture, else PTX, which the driver compiles. What cuModuleLoadData takes.
const char* imageFor(uint32_t architecture);
// The same of the kernels of dispatch and combine.
const char* epImageFor(uint32_t architecture);

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_IMAGES_H_

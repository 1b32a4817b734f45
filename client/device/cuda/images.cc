#include "device/cuda/images.h"

// The path of the repository, relative to the folder in which the compiler runs: the go command runs it in this folder, others at the top.
#ifndef RH_ROOT
#define RH_ROOT .
#endif
#define RH_TEXT(x) #x
#define RH_TEXT_OF(x) RH_TEXT(x)

// A file of the repository, followed by a NUL, which ends PTX.
#define RH_FILE(symbol, path)                                                                                     \
  __asm__(".pushsection .rodata\n.balign 64\n" #symbol ":\n.incbin \"" RH_TEXT_OF(RH_ROOT) "/" path "\"\n.byte 0\n" \
          ".popsection\n");                                                                                       \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[]

RH_FILE(rh_image_ptx, "kernels/ptx/kernels.ptx");
RH_FILE(rh_image_sm_90, "kernels/cubin/kernels.sm_90.cubin");
RH_FILE(rh_ep_image_ptx, "kernels/ptx/ep.ptx");
RH_FILE(rh_ep_image_sm_90, "kernels/cubin/ep.sm_90.cubin");

namespace railhead::client::cuda {

const char* imageFor(uint32_t architecture) { return architecture == 90 ? rh_image_sm_90 : rh_image_ptx; }
const char* epImageFor(uint32_t architecture) { return architecture == 90 ? rh_ep_image_sm_90 : rh_ep_image_ptx; }

}  // namespace railhead::client::cuda

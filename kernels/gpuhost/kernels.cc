#include "gpuhost/kernels.h"

#include <string.h>

namespace railhead::gpuhost {

Run findKernel(const char* name) {
  for (const HostKernel* k = kAllReduces; k->name != nullptr; k++) {
    if (strcmp(k->name, name) == 0) return k->run;
  }
  return nullptr;
}

}  // namespace railhead::gpuhost

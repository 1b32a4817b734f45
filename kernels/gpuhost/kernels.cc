#include "gpuhost/kernels.h"

#include <string.h>

namespace railhead::gpuhost {

Run findKernel(const char* name) {
  const HostKernel* const lists[] = {kAllReduces, kCollectives, kPipes};
  for (const HostKernel* list : lists) {
    for (const HostKernel* k = list; k->name != nullptr; k++) {
      if (strcmp(k->name, name) == 0) return k->run;
    }
  }
  return nullptr;
}

}  // namespace railhead::gpuhost

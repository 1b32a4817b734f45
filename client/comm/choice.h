// Which algorithm a collective runs: what the daemon has decided for the group, looked up by size.
#ifndef RAILHEAD_CLIENT_COMM_CHOICE_H_
#define RAILHEAD_CLIENT_COMM_CHOICE_H_

#include <stdint.h>

#include "device/device.h"
#include "wire.h"

namespace railhead::client {

// bytes: the larger of a rank's two buffers.
Choice choose(const rhw_plan& plan, uint64_t bytes);

// What is wrong with plans that another process wrote; nullptr = nothing.
const char* checkPlans(const rhw_plans& plans, int worldSize);

const char* algorithmName(uint32_t algo);
const char* whyName(uint32_t why);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_CHOICE_H_

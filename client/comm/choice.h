// Which algorithm a collective runs: looked up by size in the plans that the daemon made for the group.
#ifndef RAILHEAD_CLIENT_COMM_CHOICE_H_
#define RAILHEAD_CLIENT_COMM_CHOICE_H_

#include <stdint.h>

#include "device/device.h"
#include "wire.h"

namespace railhead::client {

// Fills in the algorithms of a checked call. The world has at least two ranks.
void choose(const Comm* comm, CollectiveCall* call);

// How a send or receive of so many bytes runs, also that of a gather, scatter or reduce.
Choice choiceOfTransfer(const Comm* comm, uint64_t bytes);

// Copies the plans for the comm's device from the control segment, checks the copy, and sets the comm's ring.
rh_result takePlans(Comm* comm);

const char* algorithmName(uint32_t algo);
const char* whyName(uint32_t why);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_CHOICE_H_

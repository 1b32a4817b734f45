// Identity: which rank of which job this process is. From the config of a call, else from the variables of the launcher that started the
// process.
#ifndef RAILHEAD_CLIENT_BASE_IDENTITY_H_
#define RAILHEAD_CLIENT_BASE_IDENTITY_H_

#include "railhead.h"
#include "wire.h"

namespace railhead::client {

struct Identity {
  int32_t rank, world;
  char group[RHW_NAME];
  char token[RHW_NAME];
};

// What config does not name is taken from the environment. Refused is a group without a name where nothing tells this job from another.
rh_result identify(const rh_comm_config& config, Identity* out);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_IDENTITY_H_

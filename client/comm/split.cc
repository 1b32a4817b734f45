// rh_comm_split: the ranks exchange their colors, and the ranks of one color form a group.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/settings.h"
#include "comm/comm.h"
#include "comm/thread_group.h"

namespace railhead::client {

namespace {

struct ColorAndKey {
  int32_t color, key;
};

// This rank among the ranks of its color: ordered by key, then by world rank, which `all` is indexed by.
void place(const ColorAndKey (&all)[RHW_MAX_LOCAL], const Comm* comm, WorldRank* rank, uint32_t* world) {
  const ColorAndKey mine = all[number(comm->rank)];
  int32_t before = 0;
  *world = 0;
  for (int r = 0; r < comm->worldSize; r++) {
    if (all[r].color != mine.color) continue;
    (*world)++;
    if (all[r].key < mine.key || (all[r].key == mine.key && r < number(comm->rank))) before++;
  }
  *rank = WorldRank{before};
}

// A unique group name: the number of the old group when it formed (daemons never reuse one), the index of the split, and the color. The
// old name is put first if there is room, for human readers.
void nameOf(const Comm* comm, int32_t color, char (&out)[RHW_NAME]) {
  const char* prefix = strlen(comm->name) <= 16 ? comm->name : "split";
  snprintf(out, sizeof out, "%.16s/%llx.%llx.%d", prefix, static_cast<unsigned long long>(comm->birth),
           static_cast<unsigned long long>(comm->splits), color);
}

rh_result split(Comm* comm, ColorAndKey mine, rh_comm** out) {
  ColorAndKey all[RHW_MAX_LOCAL];
  const rh_result result = comm->device->gather(comm, RHW_OP_SPLIT, &mine, all, sizeof mine);
  if (result != RH_OK) return result;
  comm->splits++;
  if (mine.color == RH_SPLIT_NONE) return RH_OK;
  rhw_join request = {};
  rhw_common& common = request.common;
  WorldRank rank;
  place(all, comm, &rank, &common.world);
  const Located on = {comm->device, comm->place};
  placeOnOneNode(&request, rank, on);
  nameOf(comm, mine.color, request.group);
  memcpy(common.token, comm->token, sizeof common.token);
  request.own.timeout_ms = comm->timeoutMs;
  const auto reduceGroup = static_cast<uint32_t>(comm->team.reduceGroup);
  common.reduce_group = reduceGroup < common.world ? reduceGroup : 0;
  common.heap_bytes = comm->heapBytes - comm->scratchBytes;
  memcpy(common.forcing, comm->forcing, sizeof common.forcing);
  common.reproducible = comm->reproducible;
  ownProcessors(request.own.cpus);
  return joinGroup(comm->session, request, on, comm, out);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_comm_split(rh_comm* handle, int32_t color, int32_t key, rh_comm** out) {
  if (out == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "comm_split: out is NULL");
  *out = nullptr;
  rh_result result = refuseInGroup("comm_split");
  if (result != RH_OK) return result;
  Comms::Exclusive guard(comms(), handle);
  result = checkGuard(guard, "comm_split");
  if (result == RH_OK) result = checkNotCapturing(guard.get(), "comm_split");
  if (result != RH_OK) return result;
  if (color < 0 && color != RH_SPLIT_NONE) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_split: rank %d: color %d; colors are 0 and above, or RH_SPLIT_NONE", number(guard.get()->rank), color);
  }
  return split(guard.get(), {color, key}, out);
}

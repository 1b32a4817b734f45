// Whether a thread is between rh_group_start and rh_group_end. What it has noted there is collectives' (collectives/group.cc); this is
// what calls need to know that cannot be noted.
#ifndef RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_
#define RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_

#include "railhead.h"

namespace railhead::client {

struct Comm;

// A thread's group. It is made by the first rh_group_start and ends with the thread.
struct ThreadGroup {
  int depth;         // of starts without an end
  rh_result failed;  // why rh_group_end will run nothing
  char message[768];
};

// The calling thread's; nullptr = it has never been in one.
ThreadGroup* threadGroup();
void setThreadGroup(ThreadGroup* group);

bool inGroup();
// The group of this thread fails, for the first such reason. Returns result, whose message is the thread's.
rh_result failGroup(rh_result result);
// A call that cannot be in a group, in one: the group fails.
rh_result refuseInGroup(const char* operation);
// BUSY where calls of the comm are noted in a group that has not ended, or being captured.
rh_result checkNoneNoted(const Comm* comm, const char* operation);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_

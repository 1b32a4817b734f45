// Whether a thread is between rh_group_start and rh_group_end. The noted calls themselves are in collectives/group.cc; this header is for
// calls that are not allowed in a group.
#ifndef RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_
#define RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_

#include "railhead.h"

namespace railhead::client {

struct Comm;

// The group of a thread. The first rh_group_start creates it; it is freed when the thread ends.
struct ThreadGroup {
  int depth;         // open rh_group_start calls
  rh_result failed;  // why rh_group_end will run nothing
  char message[768];
};

// The calling thread's group; nullptr = it has never called rh_group_start.
ThreadGroup* threadGroup();
void setThreadGroup(ThreadGroup* group);

bool inGroup();
// Marks this thread's group as failed; the first reason is kept. Returns result, whose message is the thread's last error.
rh_result failGroup(rh_result result);
// Refuses a call that is not allowed in a group, and marks the group as failed.
rh_result refuseInGroup(const char* operation);
// BUSY while calls of the comm are noted in an open group, or being captured.
rh_result checkNoneNoted(const Comm* comm, const char* operation);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_THREAD_GROUP_H_

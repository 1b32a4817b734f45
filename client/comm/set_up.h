// Collective set-up calls of a comm, over as many daemons as it takes.
//
// The daemon writes the end of each call into the ledger of the control segment, and answers after that. So when it dies over a
// call, every rank finds the same there: the call has ended, for all ranks alike, or it has not, and nothing has happened.
#ifndef RAILHEAD_CLIENT_COMM_SET_UP_H_
#define RAILHEAD_CLIENT_COMM_SET_UP_H_

#include "base/error.h"
#include "comm/comm.h"
#include "host/futex.h"

namespace railhead::client {

// How many set-up calls of the group have ended. None can end that this rank has not made: of its own next call the outcome is
// the one after these.
uint64_t endedCalls(const Comm* comm);

// Takes the outcome of the call after `before` from the ledger, if it has ended and is one of that operation (rhw_op). Another one
// is the end of a call that this rank had given up, because its daemon hung.
bool takeOutcome(const Comm* comm, uint64_t before, uint32_t op, rhw_outcome* out);

// attempt(call, deadline) makes the requests and takes the answers. Where the daemon is lost over it and the call has ended all
// the same, with success, apply(outcome) takes the place of the answers. Where it has not ended, the attempt is made again with
// the next daemon: it must do without what an earlier one has left. Every attempt has as long as the daemon gives it.
template <class Attempt, class Apply>
rh_result setUp(Comm* comm, uint32_t op, Attempt attempt, Apply apply) {
  const uint64_t before = endedCalls(comm);
  const int64_t until = comm->deadlineNs();
  for (;;) {
    Call call(*comm->session, operationName(op), comm->rank);
    const int64_t deadline = comm->deadlineNs();
    rh_result result = call.open(&comm->daemon, deadline, comm->team.abortWord);
    if (result == RH_OK) result = attempt(&call, deadline);
    if (result == RH_ERR_ABORTED) return whyBroken(comm);
    if (result == RH_OK || !call.lost()) return result;
    rhw_outcome outcome;
    if (takeOutcome(comm, before, op, &outcome)) {
      return outcome.code == RH_OK ? apply(outcome) : fail(static_cast<rh_result>(outcome.code), "%s", outcome.text);
    }
    const rh_result broken = whyBroken(comm);
    if (broken != RH_OK) return broken;
    if (host::nowNs() >= until) return result;
  }
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_COMM_SET_UP_H_

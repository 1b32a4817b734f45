// Collective set-up calls of a comm, which survive restarts of the daemon.
//
// The daemon writes the outcome of each call into the ledger of the control segment before it sends the answers. So if it dies during a
// call, every rank reads the same in the ledger: the call has ended for all ranks, or it has ended for none and had no effect.
#ifndef RAILHEAD_CLIENT_COMM_SET_UP_H_
#define RAILHEAD_CLIENT_COMM_SET_UP_H_

#include "base/error.h"
#include "comm/comm.h"
#include "host/futex.h"

namespace railhead::client {

// How many set-up calls of the group have ended. A call cannot end without this rank, so the next outcome after these is that of this
// rank's next call.
uint64_t endedCalls(const Comm* comm);

// Reads the outcome of the call after `before` from the ledger. False if no call has ended since, or if its operation (rhw_op) is
// another one: then it is the outcome of a call that this rank abandoned because the daemon hung.
bool takeOutcome(const Comm* comm, uint64_t before, uint32_t op, rhw_outcome* out);

// attempt(call, deadline) sends the requests and receives the answers. If the daemon is lost meanwhile and the ledger says that the
// call succeeded, apply(outcome) replaces the answers. If the ledger has no outcome, the attempt is repeated with the next daemon, and
// must not rely on anything that an earlier attempt left. Each attempt gets the full deadline.
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

// Why a group is broken, as a sentence and as fields.
#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/element_types.h"
#include "base/error.h"
#include "comm/choice.h"
#include "comm/comm.h"
#include "comm/rank_list.h"

namespace railhead::client {

namespace {

// The fields of the abort word (layout in segment.h).
struct Cause {
  rh_result code;
  uint32_t op;
  WorldRank culprit;   // kNoWorldRank = unknown
  WorldRank reporter;  // kNoWorldRank = the daemon
  bool known;          // false: the word held no valid result, and code is PROTOCOL
};

WorldRank rankOf(uint64_t bits) { return bits == RHW_NO_RANK ? kNoWorldRank : WorldRank{static_cast<int32_t>(bits)}; }

// Acquire: the rank lines that explain the word were written before it.
bool causeOf(const Comm* comm, Cause* out) {
  const uint64_t w = __atomic_load_n(&comm->header()->abort, __ATOMIC_ACQUIRE);
  // Any rank can write any value there.
  const auto code = static_cast<rh_result>(w & 0xff);
  const bool known = code > RH_OK && code <= RH_ERR_BUSY;
  *out = {known ? code : RH_ERR_PROTOCOL, static_cast<uint32_t>(w >> 32 & 0xff), rankOf(w >> 8 & RHW_NO_RANK), rankOf(w >> 40), known};
  return static_cast<uint32_t>(w) != 0;
}

template <class T>
T relaxed(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

// A rank knows only the numbers of its own streams.
void describeClash(const Comm* comm, const Cause& c, const char* who, char* out, size_t size) {
  char streams[64] = "two streams";
  const uint64_t clash = c.culprit == comm->rank ? relaxed(comm->state()->clash) : 0;
  if (clash != 0) {
    snprintf(streams, sizeof streams, "streams %u and %u", static_cast<unsigned>(clash & 0xffffffff), static_cast<unsigned>(clash >> 32));
  }
  snprintf(out, size, "%s ran operations of this comm on %s at the same time, the later one %s: give each stream a comm of its own, or order "
           "them with an event", who, streams, operationName(c.op));
}

void describeCulprit(const Comm* comm, const Cause& c, char* out, size_t size) {
  char who[48] = "a rank that is not known";
  const LocalRank culprit = comm->localOf(c.culprit);
  if (culprit != kNoLocalRank) {
    const uint32_t pid = comm->pids[number(culprit)];
    if (pid != 0) snprintf(who, sizeof who, "rank %d (pid %u)", number(c.culprit), pid);
    else snprintf(who, sizeof who, "rank %d (in another pid namespace)", number(c.culprit));
  }
  char finder[16] = "the daemon";
  if (c.reporter != kNoWorldRank) snprintf(finder, sizeof finder, "rank %d", number(c.reporter));
  if (!c.known) {
    snprintf(out, size, "%s wrote an unknown result into the abort word", finder);
    return;
  }
  switch (c.code) {
    case RH_ERR_RANK_DEAD:
      snprintf(out, size, "%s has died or closed its session%s%s", who, c.op == RHW_OP_NONE ? "" : " while in ",
               c.op == RHW_OP_NONE ? " between operations" : operationName(c.op));
      break;
    case RH_ERR_TIMEOUT:
      snprintf(out, size, "%s did not arrive in %s before the deadline (timeout_ms %u), as %s found", who, operationName(c.op), comm->timeoutMs, finder);
      break;
    case RH_ERR_PROTOCOL:
      snprintf(out, size, "%s offered memory in %s that it does not have, as %s found", who, operationName(c.op), finder);
      break;
    case RH_ERR_ABORTED: snprintf(out, size, "%s called rh_comm_abort", who); break;
    case RH_ERR_BUSY: describeClash(comm, c, who, out, size); break;
    default: snprintf(out, size, "%s broke the group (%s)", who, rh_result_string(c.code)); break;
  }
}

// Set-up calls go through the daemon, collectives do not, so a rank that makes one while others make the other is found by the deadline
// only.
bool isSetUp(uint32_t op) {
  return op == RHW_OP_WINDOW_ALLOC || op == RHW_OP_WINDOW_FREE || op == RHW_OP_WINDOW_REGISTER || op == RHW_OP_FINALIZE;
}
bool isCollective(uint32_t op) {
  return op == RHW_OP_ALL_REDUCE || op == RHW_OP_BARRIER || (op >= RHW_OP_ALL_GATHER && op <= RHW_OP_SCATTER);
}

// Adds to the text of a time-out that the culprit is in another call. A broken group's rank lines keep the interrupted calls.
void describeOtherCall(const Comm* comm, const Cause& c, char* out, size_t size) {
  const LocalRank culprit = comm->localOf(c.culprit);
  if (c.code != RH_ERR_TIMEOUT || culprit == kNoLocalRank) return;
  const uint32_t op = relaxed(comm->line(culprit)->op);
  if (!(isSetUp(op) && isCollective(c.op)) && !(isCollective(op) && isSetUp(c.op))) return;
  const size_t used = strlen(out);
  snprintf(out + used, size - used, "; rank %d is in %s: all ranks must make the same calls in the same order", number(c.culprit),
           operationName(op));
}

}  // namespace

const char* operationName(uint32_t op) {
  static const char* const names[] = {
      "none", "comm_init", "all_reduce", "barrier", "window_alloc", "window_free", "finalize", "all_gather", "reduce_scatter",
      "all_to_all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "group", "split", "window_register",
      "ep_create", "ep_destroy", "ep_dispatch", "ep_dispatch_send", "ep_dispatch_recv", "ep_combine", "ep_combine_send", "ep_combine_recv",
  };  // indexed by rhw_op
  static_assert(sizeof names / sizeof *names == RHW_OP_EP_COMBINE_RECV + 1, "every operation has a name");
  return op < sizeof names / sizeof *names ? names[op] : "none";
}

namespace {

// A collective as a rank called it, e.g. "all_reduce of 12 f32 sum".
void describeCall(const Signature& s, char* out, size_t size) {
  const uint32_t op = s.operation();
  char reduction[24] = "", from[24] = "", graph[48] = "";
  if (op == RHW_OP_ALL_REDUCE || op == RHW_OP_REDUCE_SCATTER || op == RHW_OP_REDUCE) {
    snprintf(reduction, sizeof reduction, " %s", reductionName(s.reduction()));
  }
  if (s.root() != kNoRoot) snprintf(from, sizeof from, " with root %u", s.root());
  if (s.captured() != 0) snprintf(graph, sizeof graph, " (number %u of a captured graph)", s.captured());
  if (op == RHW_OP_BARRIER || op == RHW_OP_SPLIT) {
    snprintf(out, size, "%s%s", operationName(op), graph);
  } else {
    snprintf(out, size, "%s of %llu %s%s%s%s", operationName(op), static_cast<unsigned long long>(s.count), dtypeName(s.dtype()), reduction,
             from, graph);
  }
}

unsigned sequenceOf(const Signature& s) { return s.sequence() + 1; }

// A kernel's Way (railhead/gpu/launch.h), taken apart. A kernel that not all ranks run has lanes in place of blocks, and threads 0.
struct Way {
  uint32_t algo, blocks, threads;
};
Way wayOf(uint64_t bits) { return {static_cast<uint32_t>(bits & 0x7f), static_cast<uint32_t>(bits >> 8 & 0xfff), static_cast<uint32_t>(bits >> 20 & 0xfff)}; }

// A meeting of copies is a kernel without an algorithm, as a barrier, whose text differs.
const char* nameOf(const Way& way) { return algorithmName(way.algo == RHW_ALGO_AUTO ? uint32_t{RHW_ALGO_COPY} : way.algo); }

// What differs between two calls of the same text and number. Kernels compare also how they run. a and b are the ranks of theirs and ours.
void describeDifference(const rhw_rank_line* line, const Signature& theirs, const Signature& ours, int a, int b, char* out, size_t size) {
  const uint64_t theirBits = relaxed(line->other_way), ourBits = relaxed(line->way);
  const Way their = wayOf(theirBits), our = wayOf(ourBits);
  if (theirs.history() != ours.history() || theirBits == ourBits) {
    snprintf(out, size, "; a call before these differed");
  } else if (their.algo != our.algo) {
    snprintf(out, size, "; rank %d ran it as %s, rank %d as %s: pull and copy need the buffers of all ranks in windows", a, nameOf(their), b, nameOf(our));
  } else if (their.threads == 0 && our.threads == 0) {
    snprintf(out, size, "; rank %d ran it in %u lanes, rank %d in %u", a, their.blocks, b, our.blocks);
  } else if (their.blocks != our.blocks || their.threads != our.threads) {
    snprintf(out, size, "; rank %d ran it with %u blocks of %u threads, rank %d with %u of %u", a, their.blocks, their.threads, b, our.blocks, our.threads);
  } else if (our.algo == RHW_ALGO_PULL || our.algo == RHW_ALGO_AUTO) {
    snprintf(out, size, "; the buffers of rank %d lie at other offsets in windows than those of rank %d, or only one of them has them in windows", a, b);
  } else {
    snprintf(out, size, "; rank %d ran it in another number of lanes than rank %d", a, b);
  }
}

// Two ranks made different calls. The rank that found the difference has written both down.
void describeMismatch(const Comm* comm, const Cause& c, char* out, size_t size) {
  const LocalRank finder = comm->localOf(c.reporter);
  if (finder == kNoLocalRank) {
    snprintf(out, size, "rank %d was in %s, others in another operation", number(c.culprit), operationName(c.op));
    return;
  }
  const rhw_rank_line* line = comm->line(finder);
  const Signature theirs = {relaxed(line->other_call), relaxed(line->other_count), relaxed(line->other_detail)};
  const Signature ours = {relaxed(line->call), relaxed(line->call_count), relaxed(line->call_detail)};
  char a[128], b[128];
  describeCall(theirs, a, sizeof a);
  describeCall(ours, b, sizeof b);
  if (ours.operation() == RHW_OP_SEND && theirs.operation() == RHW_OP_SEND) {
    snprintf(out, size, "rank %d receives %llu %s from rank %d, which sends %llu %s", number(c.reporter), static_cast<unsigned long long>(ours.count),
             dtypeName(ours.dtype()), number(c.culprit), static_cast<unsigned long long>(theirs.count),
             dtypeName(theirs.dtype()));
    return;
  }
  if (theirs.operation() == RHW_OP_SEND || ours.operation() == RHW_OP_SEND) {
    snprintf(out, size, "rank %d called %s where rank %d called %s", number(c.culprit), a, number(c.reporter), b);
    return;
  }
  char how[160] = "";
  if (strcmp(a, b) == 0 && sequenceOf(theirs) == sequenceOf(ours)) describeDifference(line, theirs, ours, number(c.culprit), number(c.reporter), how, sizeof how);
  snprintf(out, size, "rank %d called %s as its collective #%u, rank %d %s as its #%u%s", number(c.culprit), a, sequenceOf(theirs), number(c.reporter), b,
           sequenceOf(ours), how);
}

}  // namespace

rh_result describe(const Comm* comm, char* out, size_t size) {
  Cause cause;
  out[0] = '\0';
  if (!causeOf(comm, &cause)) return RH_OK;
  char culprit[512], where[96], waiting[kRanksText + 40] = "";
  if (cause.code == RH_ERR_MISMATCH) {
    describeMismatch(comm, cause, culprit, sizeof culprit);
  } else {
    describeCulprit(comm, cause, culprit, sizeof culprit);
    describeOtherCall(comm, cause, culprit, sizeof culprit);
  }
  const rhw_rank_line* line = comm->ownLine();
  const StoppedKernel stopped = comm->device->stopped == nullptr ? StoppedKernel{} : comm->device->stopped(comm);
  const LocalRankSet waitingFor = stopped.op != RHW_OP_NONE ? stopped.missing : LocalRankSet{relaxed(line->waiting_for)};
  if (!waitingFor.empty()) {
    char ranks[kRanksText];
    formatRanks(comm, waitingFor, ranks, sizeof ranks);
    snprintf(waiting, sizeof waiting, "; this rank was waiting for %s %s", waitingFor.size() > 1 ? "ranks" : "rank",
             ranks);
  }
  const uint32_t op = relaxed(line->op);
  const auto seq = static_cast<unsigned long long>(relaxed(line->seq));
  if (stopped.op != RHW_OP_NONE) {
    snprintf(where, sizeof where, "%s, operation #%llu on the device, stopped", operationName(stopped.op), static_cast<unsigned long long>(stopped.number));
  } else if (op == RHW_OP_NONE) {
    snprintf(where, sizeof where, "after %llu operations", seq);
  } else {
    snprintf(where, sizeof where, "%s #%llu (%llu bytes) stopped", operationName(op), seq,
             static_cast<unsigned long long>(relaxed(line->bytes)));
  }
  snprintf(out, size, "rank %d of group \"%s\": %s: %s%s. The group is broken: finalize this comm and form a new group", number(comm->rank),
           comm->name, where, culprit, waiting);
  return cause.code;
}

namespace {

// Fills *status, which has the values of RH_COMM_STATUS_INIT, for rh_comm_get_status.
void fillStatus(const Comm* comm, rh_comm_status* status) {
  const rhw_rank_line* line = comm->ownLine();
  status->rank = number(comm->rank);
  status->operation = relaxed(line->seq);
  status->bytes = relaxed(line->bytes);
  status->waiting_count = listRanks(comm, LocalRankSet{relaxed(line->waiting_for)}, nullptr, 0);
  snprintf(status->operation_name, sizeof status->operation_name, "%s", operationName(relaxed(line->op)));
  snprintf(status->culprit_operation_name, sizeof status->culprit_operation_name, "none");
  const uint32_t chosen = relaxed(line->chosen);
  snprintf(status->algorithm_name, sizeof status->algorithm_name, "%s", algorithmName(chosen & 0xffff));
  snprintf(status->algorithm_why, sizeof status->algorithm_why, "%s", whyName(chosen >> 16));
  Cause cause;
  if (!causeOf(comm, &cause)) return;
  status->culprit = number(cause.culprit);
  status->reporter = number(cause.reporter);
  snprintf(status->culprit_operation_name, sizeof status->culprit_operation_name, "%s", operationName(cause.op));
  status->result = describe(comm, status->message, sizeof status->message);
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_comm_get_status(rh_comm* handle, rh_comm_status* status) {
  const rh_result result = checkStruct("comm_get_status", "status", status);
  if (result != RH_OK) return result;
  Comms::Shared ref(comms(), handle);
  const Comm* comm = ref.get();
  if (comm == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_get_status: not a live comm: was it finalized?");
  rh_comm_status results = RH_COMM_STATUS_INIT;
  fillStatus(comm, &results);
  writeStruct(status, results);
  return RH_OK;
}

extern "C" rh_result rh_comm_get_waiting_for(rh_comm* handle, int32_t* ranks, int32_t capacity, int32_t* count) {
  Comms::Shared ref(comms(), handle);
  const Comm* comm = ref.get();
  if (comm == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_get_waiting_for: not a live comm: was it finalized?");
  return giveRanks(comm, "comm_get_waiting_for", LocalRankSet{relaxed(comm->ownLine()->waiting_for)}, ranks, capacity, count);
}

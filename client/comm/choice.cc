#include "comm/choice.h"

#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "comm/comm.h"
#include "railhead/gpu/launch.h"

namespace railhead::client {

namespace {

constexpr uint64_t kNoEnd = ~uint64_t{0};

// Whether the sizes of a plan ascend and the last choice has no upper limit.
bool ascends(const rhw_plan& p) {
  if (p.count < 1 || p.count > RHW_MAX_CHOICES) return false;
  uint64_t from = 0;
  for (uint32_t i = 0; i < p.count; i++) {
    if (p.choice[i].below_bytes <= from) return false;
    from = p.choice[i].below_bytes;
  }
  return from == kNoEnd;
}

// By rhw_planned.
constexpr uint32_t kPlanned[RHW_PLANS] = {RHW_OP_ALL_REDUCE, RHW_OP_REDUCE_SCATTER, RHW_OP_ALL_GATHER, RHW_OP_ALL_TO_ALL, RHW_OP_BROADCAST};

constexpr uint64_t bitOf(uint32_t op) { return uint64_t{1} << op; }

// Whether all choices are algorithms of the operation for that kind of buffers (1 = in windows). orAlgo is valid too. op NONE: of any
// operation.
bool areOf(const rhw_plan& p, uint32_t op, uint32_t windows, uint32_t orAlgo) {
  for (uint32_t i = 0; i < p.count; i++) {
    const uint32_t algo = p.choice[i].algo;
    if (algo == orAlgo) continue;
    if (algo >= RHW_ALGOS || rhw_algorithms[algo].windows != windows) return false;
    if (op != RHW_OP_NONE && (rhw_algorithms[algo].operations & bitOf(op)) == 0) return false;
  }
  return true;
}

// Whether the ring's order is a permutation of the local ranks.
bool isOrder(const rhw_plans& p, int32_t localSize) {
  LocalRankSet seen;
  for (int32_t i = 0; i < localSize; i++) {
    if (p.order[i] >= localSize) return false;
    seen.add(LocalRank{p.order[i]});
  }
  return seen == LocalRankSet::first(localSize);
}

// What is wrong with the numbers by which ranks wait and write; nullptr = nothing. With the bounds a wait looks at the abort word
// and the clock in time, and no product of them overflows.
const char* checkWaits(const rhw_plans& p) {
  constexpr uint64_t kMs = 1000 * 1000;
  const auto within = [](uint64_t value, uint64_t least, uint64_t most) { return value >= least && value <= most; };
  if (!within(p.polls_per_turn, 1, 4096)) return "polls_per_turn outside 1..4096";
  if (!within(p.long_turn_ns, kMs / 100, 1000 * kMs)) return "long_turn_ns outside 10 us..1 s";
  if (!within(p.busy_most_ns, 0, 4000 * kMs)) return "busy_most_ns above 4 s";
  if (!within(p.busy_spin_ns, 0, 1000 * kMs)) return "busy_spin_ns above 1 s";
  if (!within(p.busy_ns, 0, p.busy_most_ns)) return "busy_ns above busy_most_ns";
  if (!within(p.recheck_ns, kMs, 10000 * kMs)) return "recheck_ns outside 1 ms..10 s";
  if (!within(p.ep_death_check_ns, kMs, 1000 * kMs)) return "ep_death_check_ns outside 1 ms..1 s";
  if (!within(p.ep_waiter_deadlines, 1, 64)) return "ep_waiter_deadlines outside 1..64";
  if (!within(p.ep_stream_above_bytes, 4096, uint64_t{1} << 40)) return "ep_stream_above_bytes outside 4 KiB..1 TiB";
  return nullptr;
}

const char* checkRanges(const rhw_plans& plans, int i, uint32_t op) {
  if (!ascends(plans.copied[i]) || !ascends(plans.zero_copy[i])) return "size ranges that do not ascend";
  if (!areOf(plans.copied[i], op, 0, RHW_ALGOS)) return "an algorithm that the operation does not have";
  if (!areOf(plans.zero_copy[i], op, 1, RHW_ALGO_AUTO)) return "an algorithm that is not zero-copy";
  return nullptr;
}

// What is wrong with plans for the CPU; nullptr = nothing.
const char* checkPlans(const rhw_plans& plans, int32_t localSize) {
  if (!isOrder(plans, localSize)) return "a ring order that is not a permutation of the ranks";
  if (plans.channels < 1 || plans.channels > static_cast<uint32_t>(kMaxRingChannels)) return "a number of channels out of range";
  for (int i = 0; i < RHW_PLANS; i++) {
    if (const char* wrong = checkRanges(plans, i, kPlanned[i])) return wrong;
  }
  return checkWaits(plans);
}

// Whether a kernel can be launched with the blocks and threads of all choices. Those of AUTO are not used, and copy may have none.
bool areLaunchable(const rhw_plan& p) {
  for (uint32_t i = 0; i < p.count; i++) {
    const rhw_choice& c = p.choice[i];
    if (c.algo == RHW_ALGO_AUTO || (c.algo == RHW_ALGO_COPY && c.blocks == 0)) continue;
    if (c.blocks < 1 || c.blocks > gpu::kMaxBlocks || c.threads < 32 || c.threads > gpu::kMaxThreads || c.threads % 32 != 0) return false;
  }
  return true;
}

// The same for a CUDA device. A call for which there is no kernel is refused when it is made.
const char* checkDevicePlans(const rhw_plans& plans) {
  if (plans.collectives != RHW_PLANS_CUDA) return "another number of collectives";
  if (plans.polls_per_turn < 1 || plans.polls_per_turn > 4096) return "polls_per_turn outside 1..4096";
  for (int i = 0; i < RHW_PLANS_CUDA; i++) {
    if (const char* wrong = checkRanges(plans, i, RHW_OP_NONE)) return wrong;
    if (!areLaunchable(plans.copied[i]) || !areLaunchable(plans.zero_copy[i])) return "a grid that no kernel has";
  }
  return nullptr;
}

// Any rank can write the control segment at any time, so the plans are copied first and the copy is checked.
bool copyPlans(const Comm* comm, uint32_t device, rhw_plans* out) {
  for (uint32_t i = 0; i < comm->parts.plans.count; i++) {
    memcpy(out, elementOf<char>(comm->control, comm->parts.plans, static_cast<int>(i)), sizeof *out);
    if (out->device == device && out->collectives != 0) return true;
  }
  return false;
}

rh_result takeDevicePlans(Comm* comm) {
  if (comm->device->wire == RHW_DEVICE_CPU) return RH_OK;
  if (!copyPlans(comm, comm->device->wire, &comm->devicePlans)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the control segment has no plans for a %s device", number(comm->rank), comm->device->name);
  }
  if (const char* wrong = checkDevicePlans(comm->devicePlans)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the daemon's plans for a %s device have %s", number(comm->rank), comm->device->name, wrong);
  }
  return RH_OK;
}

}  // namespace

rh_result takePlans(Comm* comm) {
  if (!copyPlans(comm, RHW_DEVICE_CPU, &comm->plans)) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the control segment has no plans for a CPU", number(comm->rank));
  }
  if (const char* wrong = checkPlans(comm->plans, comm->localSize())) {
    return fail(RH_ERR_PROTOCOL, "comm_init: rank %d: the daemon's plans have %s", number(comm->rank), wrong);
  }
  const rh_result bad = takeDevicePlans(comm);
  if (bad != RH_OK) return bad;
  memcpy(comm->ring.order, comm->plans.order, sizeof comm->ring.order);
  comm->ring.channels = static_cast<int>(comm->plans.channels);
  comm->ring.protocol = RingProtocol::kSimple;
  return RH_OK;
}

namespace {

// rhw_planned of an operation, RHW_PLANS for one that has no plan.
uint32_t plannedOf(uint32_t op) {
  uint32_t i = 0;
  while (i < RHW_PLANS && kPlanned[i] != op) i++;
  return i;
}

Choice lookUp(const rhw_plan& plan, uint64_t bytes) {
  uint32_t i = 0;
  while (i + 1 < plan.count && bytes >= plan.choice[i].below_bytes) i++;
  return {plan.choice[i].algo, plan.choice[i].why, plan.choice[i].blocks, plan.choice[i].threads};
}

// The plans by which the comm's collectives run.
const rhw_plans& plansOf(const Comm* comm) { return comm->device->wire == RHW_DEVICE_CPU ? comm->plans : comm->devicePlans; }

// rhw_planned of a collective on a CUDA device, where integers have plans of their own.
uint32_t onCuda(uint32_t planned, rh_dtype dtype) {
  if (dtype < RH_I8) return planned;
  return planned == RHW_PLAN_ALL_REDUCE ? uint32_t{RHW_PLAN_ALL_REDUCE_PACKETS} : planned == RHW_PLAN_REDUCE_SCATTER ? uint32_t{RHW_PLAN_REDUCE_SCATTER_PACKETS} : planned;
}

// Whether a call of that size whose buffers lie in no window runs as if they did, in windows of the device. Only sums do, whatever a plan in
// shared memory says.
bool stages(const rhw_plans& plans, uint32_t planned, uint64_t bytes) {
  const bool adds = planned == RHW_PLAN_ALL_REDUCE || planned == RHW_PLAN_REDUCE_SCATTER || planned == RHW_PLAN_ALL_REDUCE_PACKETS ||
                    planned == RHW_PLAN_REDUCE_SCATTER_PACKETS;
  const rhw_plan& zeroCopy = plans.zero_copy[planned];
  return adds && zeroCopy.stage_from_kib != 0 && bytes >= uint64_t{zeroCopy.stage_from_kib} << 10 && lookUp(zeroCopy, bytes).algo != RHW_ALGO_AUTO;
}

}  // namespace

Choice choiceOfTransfer(const Comm* comm, uint64_t bytes) {
  const rhw_plans& plans = plansOf(comm);
  return plans.device == RHW_DEVICE_CUDA ? lookUp(plans.copied[RHW_PLAN_TRANSFERS], bytes) : Choice{RHW_ALGO_PIPE, RHW_WHY_ONLY};
}

void choose(const Comm* comm, CollectiveCall* call) {
  const Operation& o = call->operation;
  const rhw_plans& plans = plansOf(comm);
  uint32_t planned = plannedOf(o.op);
  if (planned == RHW_PLANS) {
    if (o.op != RHW_OP_BARRIER) call->copied = choiceOfTransfer(comm, bytesOf(o));
    return;
  }
  // A plan is indexed by the size of the larger of a rank's two buffers.
  const bool parts = o.op != RHW_OP_ALL_REDUCE && o.op != RHW_OP_BROADCAST;
  const uint64_t bytes = bytesOf(o) * (parts ? static_cast<uint64_t>(comm->worldSize) : 1);
  if (plans.device == RHW_DEVICE_CUDA) planned = onCuda(planned, o.dtype);
  call->copied = lookUp(plans.copied[planned], bytes);
  call->ll = bytes < plans.ll_below_bytes;
  // Each rank multiplies its own contribution, so other ranks cannot read it from the caller's buffer.
  if (o.reduce.kind == host::Reduction::kPreMulSum) return;
  call->zeroCopy = lookUp(plans.zero_copy[planned], bytes);
  call->stages = plans.device == RHW_DEVICE_CUDA && stages(plans, planned, bytes);
}

const char* algorithmName(uint32_t algo) { return rhw_algorithms[algo < RHW_ALGOS ? algo : uint32_t{RHW_ALGO_AUTO}].name; }

const char* whyName(uint32_t why) {
  static const char* const names[] = {"none", "default", "tuned", "forced", "only", "not_zero_copy"};  // by rhw_why
  return why < sizeof names / sizeof *names ? names[why] : "none";
}

namespace {

bool lookUpByName(const Comm* comm, const char* operation, size_t bytes, bool inWindows, Choice* out) {
  for (int i = 0; i < RHW_PLANS; i++) {
    if (strcmp(operation, operationName(kPlanned[i])) != 0) continue;
    const rhw_plans& plans = plansOf(comm);
    const bool zeroCopy = inWindows || stages(plans, static_cast<uint32_t>(i), bytes);
    *out = lookUp(plans.zero_copy[i], bytes);
    if (!zeroCopy || out->algo == RHW_ALGO_AUTO) *out = lookUp(plans.copied[i], bytes);
    return true;
  }
  // Every other operation has the algorithm pipe or none.
  for (uint32_t op = 0; op < 64; op++) {
    if ((rhw_algorithms[RHW_ALGO_PIPE].operations & bitOf(op)) == 0 || strcmp(operation, operationName(op)) != 0) continue;
    *out = {RHW_ALGO_PIPE, RHW_WHY_ONLY};
    return true;
  }
  return false;
}

}  // namespace
}  // namespace railhead::client

using namespace railhead::client;

extern "C" rh_result rh_comm_get_choice(rh_comm* handle, const char* operation, size_t bytes, int32_t in_windows, rh_choice* out) {
  if (operation == nullptr) return fail(RH_ERR_INVALID_ARGUMENT, "comm_get_choice: operation is NULL");
  const rh_result result = checkStruct("comm_get_choice", "choice", out);
  if (result != RH_OK) return result;
  Comms::Shared guard(comms(), handle);
  const Comm* comm = guard.get();
  if (comm == nullptr) return fail(RH_ERR_INVALID_HANDLE, "comm_get_choice: not a live comm: was it finalized?");
  Choice choice = {RHW_ALGO_AUTO, RHW_WHY_NONE};
  if (comm->worldSize > 1 && !lookUpByName(comm, operation, bytes, in_windows != 0, &choice)) {
    return fail(RH_ERR_INVALID_ARGUMENT, "comm_get_choice: rank %d: no operation \"%.32s\" has an algorithm; there are all_reduce, reduce_scatter, "
                "all_gather, all_to_all, broadcast, reduce, gather, scatter, send, recv", number(comm->rank), operation);
  }
  rh_choice results = RH_CHOICE_INIT;
  snprintf(results.algorithm, sizeof results.algorithm, "%s", algorithmName(choice.algo));
  snprintf(results.why, sizeof results.why, "%s", whyName(choice.why));
  writeStruct(out, results);
  return RH_OK;
}

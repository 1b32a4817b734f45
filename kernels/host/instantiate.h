// Makes a KernelSet for an instruction set. Included once by each host/isa_*.cc, which sets the compiler's target first.
#ifndef RAILHEAD_KERNELS_HOST_INSTANTIATE_H_
#define RAILHEAD_KERNELS_HOST_INSTANTIATE_H_

#include <string.h>

#include "host/elements.h"
#include "host/ep_rows.h"
#include "host/kernel_set.h"
#include "host/mem.h"
#include "railhead/collectives/all_to_all.h"
#include "railhead/collectives/allgather.h"
#include "railhead/collectives/allgather_ring.h"
#include "railhead/collectives/allgather_tree.h"
#include "railhead/collectives/allreduce_oneshot.h"
#include "railhead/collectives/allreduce_pull.h"
#include "railhead/collectives/allreduce_ring.h"
#include "railhead/collectives/allreduce_tree.h"
#include "railhead/collectives/allreduce_twoshot.h"
#include "railhead/collectives/barrier.h"
#include "railhead/collectives/broadcast.h"
#include "railhead/collectives/broadcast_tree.h"
#include "railhead/collectives/reduce.h"
#include "railhead/collectives/reduce_scatter.h"
#include "railhead/collectives/reduce_scatter_ring.h"
#include "railhead/collectives/reduce_scatter_tree.h"
#include "railhead/collectives/transfers.h"
#include "railhead/exchange/flag_exchange.h"

namespace railhead::host {

static inline const char* in(const void* p) { return static_cast<const char*>(p); }
static inline char* out(void* p) { return static_cast<char*>(p); }

// Of an exchange or of flags.
template <class Waiter>
Outcome outcomeOf(const Waiter& w) {
  return {w.stop(), w.missing(), w.difference()};
}

template <class T, class Isa>
struct ReductionsOf {
  using Exchange = FlagExchange<Mem<Isa>, RawTile<T>>;
  using E = Elements<T, Isa>;

  static Outcome oneshot(const FlagTeam& team, const ReduceOp& op, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    allReduceOneshot(exchange, E(op, team.worldSize), in(send), out(recv), count);
    return outcomeOf(exchange);
  }
  static Outcome twoshot(const FlagTeam& team, const ReduceOp& op, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    allReduceTwoshot(exchange, E(op, team.worldSize), in(send), out(recv), count);
    return outcomeOf(exchange);
  }
  static Outcome pull(const FlagTeam& team, const ReduceOp& op, uint64_t send, uint64_t recv, size_t count, bool* zeroCopy) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    *zeroCopy = true;
    allReducePull(exchange, E(op, team.worldSize), send, recv, count, zeroCopy);
    return outcomeOf(exchange);
  }
  static Outcome scatter(const FlagTeam& team, const ReduceOp& op, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    reduceScatter(exchange, E(op, team.worldSize), in(send), out(recv), count);
    return outcomeOf(exchange);
  }
  static Outcome scatterPull(const FlagTeam& team, const ReduceOp& op, uint64_t send, void* recv, size_t count, bool* zeroCopy) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    *zeroCopy = true;
    reduceScatterPull(exchange, E(op, team.worldSize), send, out(recv), count, zeroCopy);
    return outcomeOf(exchange);
  }
  static Outcome toRoot(const FlagTeam& team, const ReduceOp& op, int root, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    reduce(mem, team, flags, E(op, team.worldSize), root, in(send), out(recv), count);
    return outcomeOf(flags);
  }
  static Outcome tree(const FlagTeam& team, const ReduceOp& op, Tree tree, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    const E e(op, team.worldSize);
    TreeReduction<E, Mem<Isa>>(mem, team, flags, e, tree, in(send), out(recv), count).run();
    return outcomeOf(flags);
  }
  static Outcome scatterTree(const FlagTeam& team, const ReduceOp& op, Tree tree, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    const E e(op, team.worldSize);
    ReduceScatterTree<E, Mem<Isa>>(mem, team, flags, e, tree, in(send), out(recv), count).run();
    return outcomeOf(flags);
  }
  static Outcome ring(const FlagTeam& team, const RingPlan& plan, const ReduceOp& op, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    allReduceRing(mem, team, flags, E(op, team.worldSize), plan, in(send), out(recv), count);
    return outcomeOf(flags);
  }
  static Outcome scatterRing(const FlagTeam& team, const RingPlan& plan, const ReduceOp& op, const void* send, void* recv, size_t count) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    railhead::reduceScatterRing(mem, team, flags, E(op, team.worldSize), plan, in(send), out(recv), count);
    return outcomeOf(flags);
  }
  static void local(const ReduceOp& op, const void* send, void* recv, size_t count) {
    if (op.kind != Reduction::kPreMulSum) {
      if (send != recv && count > 0) memcpy(recv, send, count * sizeof(T));
      return;
    }
    const E e(op, 1);
    for (size_t tile = 0; tile * E::kElements < count; tile++) e.store(out(recv), tile, count, e.load(in(send), tile, count));
  }
  static constexpr Reductions set() {
    Reductions k{};
    k.oneshot = oneshot;
    k.twoshot = twoshot;
    k.pull = pull;
    k.reduceScatter = scatter;
    k.reduceScatterPull = scatterPull;
    k.reduce = toRoot;
    k.tree = tree;
    k.reduceScatterTree = scatterTree;
    k.ring = ring;
    k.reduceScatterRing = scatterRing;
    k.local = local;
    return k;
  }
};

template <class Isa>
struct CopiesOf {
  using E = Bytes<Isa>;
  using Exchange = FlagExchange<Mem<Isa>, typename E::Raw>;

  static Outcome gather(const FlagTeam& team, const void* send, void* recv, size_t bytes) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    railhead::allGather(exchange, E(), in(send), out(recv), bytes);
    return outcomeOf(exchange);
  }
  static Outcome gatherPull(const FlagTeam& team, uint64_t offer, const void* send, void* recv, size_t bytes, bool* zeroCopy) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    *zeroCopy = true;
    railhead::allGatherPull(exchange, E(), offer, in(send), out(recv), bytes, zeroCopy);
    return outcomeOf(exchange);
  }
  static Outcome toAll(const FlagTeam& team, const void* send, void* recv, size_t bytes) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    railhead::allToAll(exchange, E(), in(send), out(recv), bytes);
    return outcomeOf(exchange);
  }
  static Outcome toAllPull(const FlagTeam& team, uint64_t offer, void* recv, size_t bytes, bool* zeroCopy) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    *zeroCopy = true;
    railhead::allToAllPull(exchange, E(), offer, out(recv), bytes, zeroCopy);
    return outcomeOf(exchange);
  }
  static Outcome gatherRing(const FlagTeam& team, const RingPlan& plan, const void* send, void* recv, size_t bytes) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    railhead::allGatherRing(mem, team, flags, E(), plan, in(send), out(recv), bytes);
    return outcomeOf(flags);
  }
  static Outcome downTree(const FlagTeam& team, const RingPlan& plan, Tree tree, int root, void* buffer, size_t bytes) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    railhead::broadcastTree(mem, team, flags, tree, plan, root, out(buffer), bytes);
    return outcomeOf(flags);
  }
  static Outcome fromRoot(const FlagTeam& team, int root, void* buffer, size_t bytes) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    railhead::broadcast(mem, team, flags, root, out(buffer), bytes);
    return outcomeOf(flags);
  }
  static Outcome transfers(const FlagTeam& team, Transfer* list, int n) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    Transfers<Mem<Isa>>(mem, team, flags, list, n).run();
    return outcomeOf(flags);
  }
  static Outcome meet(const FlagTeam& team) {
    Mem<Isa> mem;
    Exchange exchange(mem, team);
    railhead::barrier(exchange);
    return outcomeOf(exchange);
  }
  static Outcome gatherTree(const FlagTeam& team, const RingPlan& plan, const void* send, void* recv, size_t bytes) {
    Mem<Isa> mem;
    Flags<Mem<Isa>> flags(mem, team);
    railhead::allGatherTree(mem, team, flags, plan, in(send), out(recv), bytes);
    return outcomeOf(flags);
  }
  static constexpr Copies set() {
    Copies k{};
    k.allGather = gather;
    k.allGatherPull = gatherPull;
    k.allToAll = toAll;
    k.allToAllPull = toAllPull;
    k.allGatherRing = gatherRing;
    k.allGatherTree = gatherTree;
    k.broadcast = fromRoot;
    k.broadcastTree = downTree;
    k.transfers = transfers;
    k.barrier = meet;
    return k;
  }
};

template <class Isa>
constexpr KernelSet makeKernelSet(const char* isa) {
  KernelSet set{};
  set.isa = isa;
  Reductions* const of = set.reductions;
  of[indexOf(Type::kF32)] = ReductionsOf<float, Isa>::set();
  of[indexOf(Type::kBF16)] = ReductionsOf<BF16, Isa>::set();
  of[indexOf(Type::kF64)] = ReductionsOf<double, Isa>::set();
  of[indexOf(Type::kF16)] = ReductionsOf<F16, Isa>::set();
  of[indexOf(Type::kE4M3)] = ReductionsOf<E4M3, Isa>::set();
  of[indexOf(Type::kE5M2)] = ReductionsOf<E5M2, Isa>::set();
  of[indexOf(Type::kI8)] = ReductionsOf<int8_t, Isa>::set();
  of[indexOf(Type::kU8)] = ReductionsOf<uint8_t, Isa>::set();
  of[indexOf(Type::kI32)] = ReductionsOf<int32_t, Isa>::set();
  of[indexOf(Type::kI64)] = ReductionsOf<int64_t, Isa>::set();
  of[indexOf(Type::kU64)] = ReductionsOf<uint64_t, Isa>::set();
  set.copies = CopiesOf<Isa>::set();
  set.rows = EpRowsOf<Isa>::set();
  return set;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_INSTANTIATE_H_

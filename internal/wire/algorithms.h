// Made from algorithms.txt by `go generate ./internal/wire`. Do not edit. segment.h includes it.
#ifndef RAILHEAD_WIRE_ALGORITHMS_H_
#define RAILHEAD_WIRE_ALGORITHMS_H_

enum rhw_algo {
  RHW_ALGO_AUTO = 0,
  RHW_ALGO_ONESHOT = 1,
  RHW_ALGO_TWOSHOT = 2,
  RHW_ALGO_PULL = 3,
  RHW_ALGO_PIPE = 4,
  RHW_ALGO_RING = 5,
  RHW_ALGO_TREE = 6,
  RHW_ALGO_COPY = 7,
  RHW_ALGOS = 8,
};

struct rhw_algorithm {
  const char* name;
  uint32_t windows;     // 1 = all ranks' buffers must lie in windows: nothing is copied
  uint64_t operations;  // on a CPU: bit n = rhw_op n
  uint64_t cuda;        // on a CUDA device
};

// By rhw_algo.
static const struct rhw_algorithm rhw_algorithms[RHW_ALGOS] = {
    {"none", 0, 0, 0},
    {"oneshot", 0,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL | 1ull << RHW_OP_BROADCAST},
    {"twoshot", 0,
     1ull << RHW_OP_ALL_REDUCE,
     1ull << RHW_OP_ALL_REDUCE},
    {"pull", 1,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL | 1ull << RHW_OP_BROADCAST},
    {"pipe", 0,
     1ull << RHW_OP_BROADCAST | 1ull << RHW_OP_REDUCE | 1ull << RHW_OP_GATHER | 1ull << RHW_OP_SCATTER | 1ull << RHW_OP_SEND | 1ull << RHW_OP_RECV,
     1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL | 1ull << RHW_OP_BROADCAST | 1ull << RHW_OP_REDUCE | 1ull << RHW_OP_GATHER | 1ull << RHW_OP_SCATTER | 1ull << RHW_OP_SEND | 1ull << RHW_OP_RECV},
    {"ring", 0,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_BROADCAST,
     0},
    {"tree", 0,
     1ull << RHW_OP_ALL_REDUCE | 1ull << RHW_OP_REDUCE_SCATTER | 1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_BROADCAST,
     0},
    {"copy", 1,
     0,
     1ull << RHW_OP_ALL_GATHER | 1ull << RHW_OP_ALL_TO_ALL | 1ull << RHW_OP_BROADCAST},
};

#endif  // RAILHEAD_WIRE_ALGORITHMS_H_

// Functions of the driver that only tests call, as driver_functions.h lists those of the library: what an engine does to capture graphs.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_TEST_FUNCTIONS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_TEST_FUNCTIONS_H_

#define RAILHEAD_CUDA_TEST_FUNCTIONS(X)                                                             \
  X(cuStreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode))                       \
  X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph* graph))                                   \
  X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec* exec, CUgraph graph, unsigned long long flags)) \
  X(cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream))                                      \
  X(cuGraphDestroy, 10000, (CUgraph graph))                                                         \
  X(cuGraphExecDestroy, 10000, (CUgraphExec exec))                                                  \
  X(cuGraphGetNodes, 10000, (CUgraph graph, CUgraphNode* nodes, size_t* count))                     \
  X(cuMemAllocManaged, 6000, (CUdeviceptr* pointer, size_t bytes, unsigned int flags))              \
  X(cuMemAllocAsync, 11020, (CUdeviceptr* pointer, size_t bytes, CUstream stream))

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_FAKE_TEST_FUNCTIONS_H_

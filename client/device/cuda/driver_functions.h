// The functions of the CUDA driver API that the library calls: X(name, version, parameters). The version is the CUDA release (1000 * major
// + 10 * minor) since which the function has these parameters; cudaTypedefs.h names it PFN_<name>_v<version>. cuGetProcAddress returns the
// function of that release, whatever the driver's own release is.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_FUNCTIONS_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_FUNCTIONS_H_

#define RAILHEAD_CUDA_DEVICE_FUNCTIONS(X)                                                                                        \
  X(cuInit, 2000, (unsigned int flags))                                                                                          \
  X(cuDriverGetVersion, 2020, (int* version))                                                                                    \
  X(cuGetErrorName, 6000, (CUresult error, const char** name))                                                                   \
  X(cuGetErrorString, 6000, (CUresult error, const char** text))                                                                 \
  X(cuDeviceGet, 2000, (CUdevice* device, int ordinal))                                                                          \
  X(cuDeviceGetCount, 2000, (int* count))                                                                                        \
  X(cuDeviceGetUuid, 11040, (CUuuid* uuid, CUdevice device))                                                                     \
  X(cuDeviceGetName, 2000, (char* name, int bytes, CUdevice device))                                                             \
  X(cuDeviceGetAttribute, 2000, (int* value, CUdevice_attribute attribute, CUdevice device))                                     \
  X(cuDeviceTotalMem, 3020, (size_t* bytes, CUdevice device))                                                                    \
  X(cuDeviceGetPCIBusId, 4010, (char* id, int bytes, CUdevice device))                                                           \
  X(cuDeviceCanAccessPeer, 4000, (int* can, CUdevice device, CUdevice peer))                                                     \
  X(cuDeviceGetP2PAttribute, 8000, (int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination))         \
  X(cuDevicePrimaryCtxRetain, 7000, (CUcontext* context, CUdevice device))                                                       \
  X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                                                         \
  X(cuCtxPushCurrent, 4000, (CUcontext context))                                                                                 \
  X(cuCtxPopCurrent, 4000, (CUcontext* context))                                                                                 \
  X(cuCtxGetCurrent, 4000, (CUcontext* context))                                                                                 \
  X(cuCtxGetDevice, 2000, (CUdevice* device))                                                                                    \
  X(cuCtxSynchronize, 2000, (void))

#define RAILHEAD_CUDA_STREAM_FUNCTIONS(X)                                                                                        \
  X(cuStreamCreate, 2000, (CUstream* stream, unsigned int flags))                                                                \
  X(cuStreamDestroy, 4000, (CUstream stream))                                                                                    \
  X(cuStreamQuery, 2000, (CUstream stream))                                                                                      \
  X(cuStreamSynchronize, 2000, (CUstream stream))                                                                                \
  X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags))                                               \
  X(cuStreamGetCtx, 9020, (CUstream stream, CUcontext* context))                                                                 \
  X(cuStreamGetId, 12000, (CUstream stream, unsigned long long* id))                                                             \
  X(cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus* status))                                                \
  X(cuStreamGetCaptureInfo, 12030,                                                                                               \
    (CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,             \
     const CUgraphEdgeData** edges, size_t* numDependencies))                                                                    \
  X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode * mode))                                                      \
  X(cuUserObjectCreate, 11030, (CUuserObject* object, void* data, CUhostFn destroy, unsigned int references, unsigned int flags)) \
  X(cuUserObjectRelease, 11030, (CUuserObject object, unsigned int count))                                                       \
  X(cuGraphRetainUserObject, 11030, (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags))                \
  X(cuEventCreate, 2000, (CUevent* event, unsigned int flags))                                                                   \
  X(cuEventDestroy, 4000, (CUevent event))                                                                                       \
  X(cuEventRecord, 2000, (CUevent event, CUstream stream))                                                                       \
  X(cuEventQuery, 2000, (CUevent event))                                                                                         \
  X(cuEventSynchronize, 2000, (CUevent event))                                                                                   \
  X(cuEventElapsedTime, 2000, (float* ms, CUevent start, CUevent end))                                                           \
  X(cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn function, void* data))

#define RAILHEAD_CUDA_KERNEL_FUNCTIONS(X)                                                                                        \
  X(cuModuleLoadDataEx, 2010, (CUmodule* module, const void* image, unsigned int count, CUjit_option* options, void** values))   \
  X(cuModuleUnload, 2000, (CUmodule module))                                                                                     \
  X(cuModuleGetFunction, 2000, (CUfunction* function, CUmodule module, const char* name))                                        \
  X(cuFuncGetAttribute, 2020, (int* value, CUfunction_attribute attribute, CUfunction function))                                 \
  X(cuFuncLoad, 12040, (CUfunction function))                                                                                    \
  X(cuLaunchKernelEx, 11060, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra))               \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int* blocks, CUfunction function, int threads, size_t dynamicShared))

#define RAILHEAD_CUDA_MEMORY_FUNCTIONS(X)                                                                                        \
  X(cuMemcpy, 4000, (CUdeviceptr to, CUdeviceptr from, size_t bytes))                                                            \
  X(cuMemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                      \
  X(cuMemcpyDtoH, 3020, (void* to, CUdeviceptr from, size_t bytes))                                                              \
  X(cuMemcpyHtoD, 3020, (CUdeviceptr to, const void* from, size_t bytes))                                                        \
  X(cuMemsetD8, 3020, (CUdeviceptr to, unsigned char value, size_t count))                                                       \
  X(cuMemsetD8Async, 3020, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                                 \
  X(cuMemsetD32, 3020, (CUdeviceptr to, unsigned int value, size_t count))                                                       \
  X(cuMemsetD32Async, 3020, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream))                                 \
  X(cuMemAlloc, 3020, (CUdeviceptr* pointer, size_t bytes))                                                                      \
  X(cuMemFree, 3020, (CUdeviceptr pointer))                                                                                      \
  X(cuMemGetInfo, 3020, (size_t* free, size_t* total))                                                                           \
  X(cuMemHostAlloc, 2020, (void** pointer, size_t bytes, unsigned int flags))                                                    \
  X(cuMemFreeHost, 2000, (void* pointer))                                                                                        \
  X(cuMemHostRegister, 6050, (void* pointer, size_t bytes, unsigned int flags))                                                  \
  X(cuMemHostUnregister, 4000, (void* pointer))                                                                                  \
  X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr* device, void* pointer, unsigned int flags))                                   \
  X(cuMemAddressReserve, 10020, (CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)) \
  X(cuMemAddressFree, 10020, (CUdeviceptr pointer, size_t bytes))                                                                \
  X(cuMemCreate, 10020, (CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags)) \
  X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                                                  \
  X(cuMemMap, 10020, (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, 10020, (CUdeviceptr pointer, size_t bytes))                                                                      \
  X(cuMemSetAccess, 10020, (CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count))                     \
  X(cuMemExportToShareableHandle, 10020,                                                                                         \
    (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags))            \
  X(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle* handle, void* shareable, CUmemAllocationHandleType type)) \
  X(cuMemGetAllocationGranularity, 10020,                                                                                        \
    (size_t* granularity, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags option))                       \
  X(cuMemGetAllocationPropertiesFromHandle, 10020, (CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle))       \
  X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle* handle, void* pointer))                                   \
  X(cuIpcGetMemHandle, 4010, (CUipcMemHandle* handle, CUdeviceptr pointer))                                                      \
  X(cuIpcOpenMemHandle, 11000, (CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags))                                \
  X(cuIpcCloseMemHandle, 4010, (CUdeviceptr pointer))                                                                            \
  X(cuMemGetAddressRange, 3020, (CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer))                                         \
  X(cuPointerGetAttribute, 4000, (void* value, CUpointer_attribute attribute, CUdeviceptr pointer))

#define RAILHEAD_CUDA_FUNCTIONS(X)  \
  RAILHEAD_CUDA_DEVICE_FUNCTIONS(X) \
  RAILHEAD_CUDA_STREAM_FUNCTIONS(X) \
  RAILHEAD_CUDA_KERNEL_FUNCTIONS(X) \
  RAILHEAD_CUDA_MEMORY_FUNCTIONS(X)

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_FUNCTIONS_H_

// The part of the CUDA driver API's types that the library uses, as CUDA 12 and 13 define them, for Linux on 64 bits. The library is
// built without CUDA's headers. A test compares sizes, offsets and values with cuda.h where that can be had.
//
// The names are CUDA's own, so that its documentation applies. The namespace keeps them apart from cuda.h.
#ifndef RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_TYPES_H_
#define RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_TYPES_H_

#include <stddef.h>
#include <stdint.h>

namespace railhead::client::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;  // an address of the unified address space, that of the host and of all devices
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUuserObject = struct CUuserObject_st*;
using CUgraphEdgeData = struct CUgraphEdgeData_st;  // only pointers, which are null here
using CUhostFn = void (*)(void* userData);

// The underlying types are fixed, so that a value that a newer driver returns can be kept and printed.
enum CUresult : unsigned int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_UNMAP_FAILED = 206,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_TOO_MANY_PEERS = 711,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
  CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
  CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
  CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_FUNCTION_NOT_LOADED = 913,
  CUDA_ERROR_UNKNOWN = 999,
};

struct CUuuid {
  char bytes[16];
};

enum CUdevice_attribute : unsigned int {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
  CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
  CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
};

enum CUdevice_P2PAttribute : unsigned int {
  CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
  CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
};

enum CUdriverProcAddressQueryResult : unsigned int {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};
constexpr uint64_t CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;  // stream 0 is the legacy default stream

// Memory.

enum CUmemAllocationType : unsigned int { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };

enum CUmemAllocationHandleType : unsigned int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};

enum CUmemLocationType : unsigned int { CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2 };

struct CUmemLocation {
  CUmemLocationType type;
  int id;  // the device's ordinal
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

enum CUmemAccess_flags : unsigned int {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

enum CUmemAllocationGranularity_flags : unsigned int { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };

// What cuMemExportToShareableHandle writes for a FABRIC handle.
struct CUmemFabricHandle {
  unsigned char data[64];
};

struct CUipcMemHandle {
  char reserved[64];
};
constexpr unsigned int CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

constexpr unsigned int CU_MEMHOSTALLOC_PORTABLE = 1;
constexpr unsigned int CU_MEMHOSTALLOC_DEVICEMAP = 2;
constexpr unsigned int CU_MEMHOSTREGISTER_PORTABLE = 1;
constexpr unsigned int CU_MEMHOSTREGISTER_DEVICEMAP = 2;

enum CUpointer_attribute : unsigned int {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,                      // CUcontext
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,                  // unsigned int, a CUmemorytype
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,               // CUdeviceptr
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,                    // unsigned long long, unique in the process
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,                   // unsigned int
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,               // int
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,  // unsigned int
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,            // void*
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,                  // size_t
  CU_POINTER_ATTRIBUTE_MAPPED = 13,                      // unsigned int
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,        // unsigned long long, CUmemAllocationHandleType bits
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,              // CUmemoryPool; null = of no pool
  CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,                // size_t
  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,           // void*
};

enum CUmemorytype : unsigned int { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

// Streams, events, graphs.

constexpr unsigned int CU_STREAM_NON_BLOCKING = 1;
constexpr unsigned int CU_EVENT_DISABLE_TIMING = 2;

enum CUstreamCaptureStatus : unsigned int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : unsigned int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

constexpr unsigned int CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1;
constexpr unsigned int CU_GRAPH_USER_OBJECT_MOVE = 1;  // the graph takes over the caller's references

// Kernels.

enum CUfunction_attribute : unsigned int {
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
  CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
};

enum CUjit_option : unsigned int {
  CU_JIT_ERROR_LOG_BUFFER = 5,             // char*
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,  // unsigned int
};

enum CUlaunchAttributeID : unsigned int {
  CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
  CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
};

union CUlaunchAttributeValue {
  char pad[64];
  int programmaticStreamSerializationAllowed;
  int priority;
  void* alignment;  // CUDA's union has members of 8 bytes
};

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[8 - sizeof(CUlaunchAttributeID)];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;  // null is allowed where numAttrs is 0
  unsigned int numAttrs;
};

}  // namespace railhead::client::cuda

#endif  // RAILHEAD_CLIENT_DEVICE_CUDA_DRIVER_TYPES_H_

#include "device/cuda/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/driver.h"

namespace railhead::client::cuda {

namespace {

struct Meaning {
  CUresult code;
  rh_result result;
  const char* hint;  // what to do
};

constexpr Meaning kMeanings[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, RH_ERR_OUT_OF_MEMORY, "the GPU's memory is full: leave more of it free (give the engine a smaller share), or ask for smaller windows"},
    {CUDA_ERROR_NOT_INITIALIZED, RH_ERR_SYSTEM, "if this process was forked after its parent had used CUDA, start it with spawn or exec instead"},
    {CUDA_ERROR_DEINITIALIZED, RH_ERR_SYSTEM, "the process is exiting: finalize the comm before that"},
    {CUDA_ERROR_STUB_LIBRARY, RH_ERR_UNSUPPORTED, "the library that was loaded is the CUDA toolkit's stub: put the driver's libcuda.so.1 before it in LD_LIBRARY_PATH"},
    {CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, RH_ERR_UNSUPPORTED, "update the NVIDIA driver"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, RH_ERR_SYSTEM, "another process has the GPU for itself: `nvidia-smi -q -d COMPUTE` shows the compute mode, which should be Default"},
    {CUDA_ERROR_NO_DEVICE, RH_ERR_UNSUPPORTED, "no GPU is visible: `nvidia-smi -L` lists them; see also CUDA_VISIBLE_DEVICES, and the GPUs given to the container"},
    {CUDA_ERROR_INVALID_DEVICE, RH_ERR_INVALID_ARGUMENT, "`nvidia-smi -L` lists the GPUs; CUDA_VISIBLE_DEVICES selects and numbers those of this process"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, RH_ERR_UNSUPPORTED, "the library has no kernels for this GPU: compute capability 8.0 or newer is needed"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, RH_ERR_SYSTEM, "the GPU's memory has an error: `nvidia-smi -q -d ECC`; reset the GPU"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, RH_ERR_UNSUPPORTED, "the GPUs cannot access each other's memory: `nvidia-smi topo -p2p rw` shows which can"},
    {CUDA_ERROR_INVALID_PTX, RH_ERR_UNSUPPORTED, "the driver does not accept the library's kernels: update the NVIDIA driver"},
    {CUDA_ERROR_NVLINK_UNCORRECTABLE, RH_ERR_SYSTEM, "an NVLink has failed: `nvidia-smi nvlink -e`; reset the GPU"},
    {CUDA_ERROR_JIT_COMPILER_NOT_FOUND, RH_ERR_UNSUPPORTED, "libnvidia-ptxjitcompiler.so.1, a part of the driver, is not there: give the container the driver capability `compute`"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, RH_ERR_UNSUPPORTED, "the kernels are compiled with CUDA 13.0: update the NVIDIA driver to 580 or newer"},
    {CUDA_ERROR_JIT_COMPILATION_DISABLED, RH_ERR_UNSUPPORTED, "unset CUDA_DISABLE_PTX_JIT"},
    {CUDA_ERROR_OPERATING_SYSTEM, RH_ERR_SYSTEM, "the operating system refused it: see `dmesg`, `ulimit -n` and, for pinned memory, `ulimit -l`"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, RH_ERR_SYSTEM, "a kernel of this process used a wrong address, so its CUDA context is lost: find it with compute-sanitizer, and restart the process"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, RH_ERR_SYSTEM, "the device was reset in this process: finalize the comm before cudaDeviceReset"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, RH_ERR_BUSY, "the process has registered this memory already: unregister it, or use other memory"},
    {CUDA_ERROR_LAUNCH_FAILED, RH_ERR_SYSTEM, "a kernel of this process failed, so its CUDA context is lost: find it with compute-sanitizer, and restart the process"},
    {CUDA_ERROR_NOT_PERMITTED, RH_ERR_PERMISSION, "the driver forbids it to this process or container"},
    {CUDA_ERROR_NOT_SUPPORTED, RH_ERR_UNSUPPORTED, "this GPU, driver or virtual machine lacks it"},
    {CUDA_ERROR_SYSTEM_NOT_READY, RH_ERR_SYSTEM, "on a machine with NVSwitches the fabric manager must run: `systemctl status nvidia-fabricmanager`"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, RH_ERR_SYSTEM, "libcuda.so.1 and the kernel module are of different releases: restart the machine after an update, or remove a libcuda of an image"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, RH_ERR_UNSUPPORTED, "forward compatibility (cuda-compat) is for data-centre GPUs only: remove it from LD_LIBRARY_PATH"},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, RH_ERR_SYSTEM, "is the MPS daemon of CUDA_MPS_PIPE_DIRECTORY running, and of the same user?"},
    {CUDA_ERROR_MPS_SERVER_NOT_READY, RH_ERR_SYSTEM, "the MPS server starts or recovers from a fault: try again"},
    {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, RH_ERR_LIMIT, "MPS serves no more processes"},
    {CUDA_ERROR_MPS_CLIENT_TERMINATED, RH_ERR_SYSTEM, "MPS has ended this process's client: restart the process"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, RH_ERR_UNSUPPORTED, "a stream of this thread is being captured: do this before or after the capture"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, RH_ERR_INVALID_ARGUMENT, "the capture in progress has failed earlier: end it and capture again"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, RH_ERR_INVALID_ARGUMENT, "the legacy default stream cannot be used while another stream is captured: give the call its own stream"},
};

const Meaning* meaningOf(CUresult code) {
  for (const Meaning& m : kMeanings) {
    if (m.code == code) return &m;
  }
  return nullptr;
}

}  // namespace

bool because(Failure* why, rh_result result, const char* format, ...) {
  if (why->result != RH_OK) return false;
  why->result = result;
  va_list args;
  va_start(args, format);
  vsnprintf(why->text, sizeof why->text, format, args);
  va_end(args);
  return false;
}

bool prefix(Failure* why, const char* format, ...) {
  char text[sizeof why->text];
  va_list args;
  va_start(args, format);
  const int written = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const size_t length = strnlen(text, sizeof text - 1);
  if (written >= 0) snprintf(text + length, sizeof text - length, "%s", why->text);
  memcpy(why->text, text, sizeof text);
  return false;
}

bool driverFailed(const Driver* driver, const char* function, CUresult code, Failure* why) {
  if (why->result != RH_OK) return false;
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver != nullptr) {
    // A code that the driver does not know leaves null pointers.
    if (driver->cuGetErrorName.call(code, &name) != CUDA_SUCCESS) name = nullptr;
    if (driver->cuGetErrorString.call(code, &text) != CUDA_SUCCESS) text = nullptr;
  }
  const Meaning* meaning = meaningOf(code);
  because(why, meaning != nullptr ? meaning->result : RH_ERR_SYSTEM, "%s: %s (%u): %s%s%s", function, name != nullptr ? name : "CUDA error",
          static_cast<unsigned>(code), text != nullptr ? text : "the driver has no text for it", meaning != nullptr ? "; " : "",
          meaning != nullptr ? meaning->hint : "");
  why->code = code;
  return false;
}

}  // namespace railhead::client::cuda

// Modules and kernels. An image is real PTX or machine code; what runs is the host's function of the same name.
#include <dlfcn.h>
#include <string.h>

#include "device/cuda/fake/c/fake.h"

namespace railhead::client::cuda {

struct CUfunc_st {
  std::string name;
  fake_cuda_kernel run;
  size_t parameterBytes;
  bool loaded = false;
};
struct CUmod_st {
  std::map<std::string, CUfunc_st> functions;  // looked up so far
};

}  // namespace railhead::client::cuda

namespace railhead::fake {

namespace {

constexpr unsigned kMostThreads = 1024;

// Whether it begins as a file that a driver loads.
bool isImage(const void* image) {
  if (image == nullptr) return false;
  const auto* text = static_cast<const char*>(image);
  return memcmp(text, "\177ELF", 4) == 0 || strstr(text, ".version") != nullptr;
}

// Looks a kernel up in the library of the host's kernels. Guarded by world.
CUresult find(CUmod_st* module, const char* name, CUfunc_st** out) {
  if (const auto before = module->functions.find(name); before != module->functions.end()) {
    *out = &before->second;
    return CUDA_SUCCESS;
  }
  static void* library = nullptr;
  const char* path = environment("RAILHEAD_FAKE_CUDA_KERNELS", nullptr);
  if (library == nullptr && path != nullptr) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return CUDA_ERROR_NOT_FOUND;
  const auto run = reinterpret_cast<fake_cuda_kernel>(dlsym(library, name));
  const auto bytes = reinterpret_cast<fake_cuda_parameter_bytes>(dlsym(library, FAKE_CUDA_PARAMETER_BYTES));
  if (run == nullptr || bytes == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = &(module->functions[name] = {name, run, bytes(name)});
  return CUDA_SUCCESS;
}

bool isLoaded(CUfunction function) {
  const std::lock_guard<std::mutex> lock(world);
  return function->loaded;
}

}  // namespace

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*, void**) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (forbiddenByCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (!isImage(image)) return CUDA_ERROR_INVALID_IMAGE;
  const std::lock_guard<std::mutex> lock(world);
  *module = new CUmod_st();
  account.modules++;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  const std::lock_guard<std::mutex> lock(world);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  delete module;
  account.modules--;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const std::lock_guard<std::mutex> lock(world);
  return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : find(module, name, function);
}

CUresult cuFuncLoad(CUfunction function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard<std::mutex> lock(world);
  function->loaded = true;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kMostThreads; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = 80; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t) {
  if (function == nullptr || threads <= 0 || threads > static_cast<int>(kMostThreads)) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 2048 / threads;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  if (config == nullptr || function == nullptr || parameters == nullptr || parameters[0] == nullptr || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A driver would load the kernel here, and might wait for running kernels first, which may wait for this one. So the library must have loaded it.
  if (!isLoaded(function)) return CUDA_ERROR_ILLEGAL_STATE;
  if (config->numAttrs > 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const fake_cuda_launch launch = {{config->gridDimX, config->gridDimY, config->gridDimZ}, {config->blockDimX, config->blockDimY, config->blockDimZ}};
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (launch.grid[i] == 0 || launch.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    threads *= launch.block[i];
  }
  if (threads > kMostThreads) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult code = unusableHere(config->hStream); code != CUDA_SUCCESS) return code;
  const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
  // The driver copies the parameters before it returns. Kernels' parameters may be aligned to 64 bytes.
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  auto copy = std::make_shared<std::vector<Line>>((function->parameterBytes + sizeof(Line) - 1) / sizeof(Line));
  memcpy(copy->data(), bytes, function->parameterBytes);
  return enqueue(config->hStream, [copy, launch, run = function->run] { run(copy->data(), &launch); });
}

}  // namespace railhead::fake

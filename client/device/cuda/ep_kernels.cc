#include "device/cuda/ep_kernels.h"

namespace railhead::client::cuda {

namespace {

// Also loads it onto the device: a driver that loads kernels at their first launch would have to wait for running kernels then.
bool find(const Driver& driver, CUmodule module, const char* name, CUfunction* out, Failure* why) {
  return (driver.cuModuleGetFunction(why, out, module, name) && driver.cuFuncLoad(why, *out)) || prefix(why, "the kernel %s: ", name);
}

}  // namespace

bool findEpKernels(const Context& context, EpKernels* k, Failure* why) {
  const Current current(context, why);
  if (!current) return false;
  struct {
    const char* name;
    CUfunction* to;
  } const all[] = {
      {"rh_ep_encode_f32", &k->encode[static_cast<int>(gpu::EpType::kF32)]},
      {"rh_ep_encode_bf16", &k->encode[static_cast<int>(gpu::EpType::kBF16)]},
      {"rh_ep_encode_f16", &k->encode[static_cast<int>(gpu::EpType::kF16)]},
      {"rh_ep_encode_fp8_e4m3", &k->encode[static_cast<int>(gpu::EpType::kE4M3)]},
      {"rh_ep_plan", &k->plan},
      {"rh_ep_dispatch_ll", &k->dispatchLl},
      {"rh_ep_dispatch_ll_planned", &k->plannedDispatchLl},
      {"rh_ep_dispatch_ll_plain", &k->plainDispatchLl},
      {"rh_ep_combine_ll_f32", &k->combine[0][static_cast<int>(gpu::EpType::kF32)]},
      {"rh_ep_combine_ll_bf16", &k->combine[0][static_cast<int>(gpu::EpType::kBF16)]},
      {"rh_ep_combine_ll_f16", &k->combine[0][static_cast<int>(gpu::EpType::kF16)]},
      {"rh_ep_dispatch_ht", &k->dispatchHt},
      {"rh_ep_combine_ht_f32", &k->combine[1][static_cast<int>(gpu::EpType::kF32)]},
      {"rh_ep_combine_ht_bf16", &k->combine[1][static_cast<int>(gpu::EpType::kBF16)]},
      {"rh_ep_combine_ht_f16", &k->combine[1][static_cast<int>(gpu::EpType::kF16)]},
      {"rh_ep_release", &k->release},
  };
  for (const auto& kernel : all) {
    if (!find(*context.driver, k->module, kernel.name, kernel.to, why)) return false;
  }
  return true;
}

}  // namespace railhead::client::cuda

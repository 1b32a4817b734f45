// The floating-point environment in which kernels compute: round to nearest, no subnormal number flushed to zero, no traps. A caller's
// environment may differ. A library built with -ffast-math makes the thread that loads it flush subnormal numbers to zero, and
// feenableexcept turns an overflow into SIGFPE. Then ranks would get different bits, or die.
#ifndef RAILHEAD_KERNELS_HOST_FP_ENVIRONMENT_H_
#define RAILHEAD_KERNELS_HOST_FP_ENVIRONMENT_H_

#include <stdint.h>

namespace railhead::host {

// Sets the thread's standard environment, and restores the caller's at the end of its life, exception flags included. The compiler may move
// arithmetic on registers across both ends, but no call of another function and no access to memory.
class StandardFp {
 public:
  StandardFp(const StandardFp&) = delete;
  StandardFp& operator=(const StandardFp&) = delete;

#if defined(__x86_64__)
  // MXCSR is the whole environment, because the library has no x87 instructions (a test in client/abi). A read of MXCSR takes three times as
  // long as a write, so this writes twice and never reads to find out whether it has to.
  StandardFp() {
    asm volatile("stmxcsr %0" : "=m"(callers_)::"memory");
    const uint32_t standard = 0x1f80;  // every exception masked, no exception flag
    asm volatile("ldmxcsr %0" ::"m"(standard) : "memory");
  }
  ~StandardFp() { asm volatile("ldmxcsr %0" ::"m"(callers_) : "memory"); }

 private:
  uint32_t callers_;
#elif defined(__aarch64__)
  // A write of FPCR can drain the pipeline, so it happens only if the caller's value is not 0, the standard one.
  StandardFp() {
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control_), "=r"(flags_)::"memory");
    if (control_ != 0) asm volatile("msr fpcr, xzr" ::: "memory");
  }
  ~StandardFp() {
    if (control_ != 0) asm volatile("msr fpcr, %0" ::"r"(control_) : "memory");
    asm volatile("msr fpsr, %0" ::"r"(flags_) : "memory");
  }

 private:
  uint64_t control_, flags_;
#else
#error "save and set the floating-point environment of this processor here"
#endif
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_FP_ENVIRONMENT_H_

// Fibers: the model's threads. A switch saves the callee-saved registers and changes the stack. swapcontext would make a system call for
// the signal mask each time.
#ifndef RAILHEAD_KERNELS_MODEL_FIBER_H_
#define RAILHEAD_KERNELS_MODEL_FIBER_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vector>

extern "C" void railheadModelSwitch(void** savedStack, void* newStack);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl railheadModelSwitch
.type railheadModelSwitch, @function
railheadModelSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size railheadModelSwitch, .-railheadModelSwitch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl railheadModelSwitch
.type railheadModelSwitch, %function
railheadModelSwitch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size railheadModelSwitch, .-railheadModelSwitch
)");
#else
#error "the model target has a context switch for x86-64 and aarch64"
#endif

namespace railhead::model {

// A stack, used again by later runs. A fiber that a run abandons must have nothing on it that owns memory.
class Stack {
 public:
  Stack() : words_(kBytes / sizeof(uint64_t)) {}

  // The stack pointer with which railheadModelSwitch enters entry on an empty stack. entry never returns.
  void* prepare(void (*entry)()) {
    words_[0] = kCanary;
    auto top = reinterpret_cast<uintptr_t>(words_.data() + words_.size()) & ~uintptr_t{15};
#if defined(__x86_64__)
    // Six registers, the return address, and a word that aligns the stack as after a call.
    auto* sp = reinterpret_cast<uintptr_t*>(top) - 8;
    memset(sp, 0, 8 * sizeof *sp);
    sp[6] = reinterpret_cast<uintptr_t>(entry);
#else
    auto* sp = reinterpret_cast<uintptr_t*>(top) - 20;
    memset(sp, 0, 20 * sizeof *sp);
    sp[11] = reinterpret_cast<uintptr_t>(entry);  // x30
#endif
    return sp;
  }
  bool overflowed() const { return words_[0] != kCanary; }

 private:
  static constexpr size_t kBytes = 64 * 1024;
  static constexpr uint64_t kCanary = 0x7261696c68656164;
  std::vector<uint64_t> words_;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_FIBER_H_

// What an all-reduce must give, by the elements of the CPU target; and contributions that have every kind of value.
#ifndef RAILHEAD_KERNELS_TESTDATA_CPU_BITS_H_
#define RAILHEAD_KERNELS_TESTDATA_CPU_BITS_H_

#include <stddef.h>
#include <stdint.h>

constexpr int kCpuTypes = 11;       // by rh_dtype
constexpr int kCpuReductions = 6;   // sum, prod, min, max, avg, pre-mul-sum

uint32_t cpuTypeBytes(int type);

// sends[r]: count elements of rank r. scale: of a pre-mul-sum, as Call::scale.
void cpuAllReduce(int type, int reduction, uint64_t scale, const char* const* sends, int worldSize, int reduceGroup, size_t count, char* out);

// A scale for the type: a small number.
uint64_t cpuScale(int type, uint64_t random);

// Fills count elements: any bits, all ones, NaNs, infinities, -0, denormals, small numbers.
void fillWithEveryValue(int type, uint64_t seed, char* to, size_t count);

#endif  // RAILHEAD_KERNELS_TESTDATA_CPU_BITS_H_

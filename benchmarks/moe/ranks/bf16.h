/* bf16.h - sums of bf16 rows, for the sides that are written by hand and for what is expected of all. No NaN comes. */
#ifndef BF16_H_
#define BF16_H_

#include <stdint.h>
#include <string.h>

static inline float widen(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* To the nearest, ties to even. */
static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#endif

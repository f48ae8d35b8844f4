/* The compiled loops of ropewalk: plain C over bytes that the caller owns. No state, no clock, no threads; files only
 * where the caller hands an open one over. Every function may run in several threads at once and returns -1 rather
 * than write past its buffers. */
#ifndef ROPEWALK_NATIVE_H
#define ROPEWALK_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

/* Raised whenever a signature below changes, or a fault is mended, so that a library of another build is never called. */
#ifndef NATIVE_VERSION
#define NATIVE_VERSION 11
#endif

typedef struct {
    uint32_t state[5];
    uint64_t count;
    uint8_t block[64];
} sha1;

HIDDEN void sha1_begin(sha1 *it);
HIDDEN void sha1_add(sha1 *it, const uint8_t *raw, size_t size);
HIDDEN void sha1_end(sha1 *it, uint8_t digest[20]);
HIDDEN uint32_t adler_of(const uint8_t *raw, size_t size);
enum { HASH_SHORT_MAX = 1024 };
HIDDEN void hash_short(const uint8_t *const *raw, const uint32_t *sizes, int count, uint8_t (*out)[32]);
HIDDEN void name_object(int kind, const uint8_t *raw, size_t size, uint8_t id[20]);

#endif

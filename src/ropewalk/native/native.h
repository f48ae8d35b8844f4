/* The compiled loops of ropewalk: plain C over bytes that the caller owns. No state, no files, no clock, no threads of
 * their own; every function may run in several threads at once and says -1 rather than write past what it was given. */
#ifndef ROPEWALK_NATIVE_H
#define ROPEWALK_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

/* Raised whenever a signature below changes, or a fault is mended, so that a library of another build is never called. */
#ifndef NATIVE_VERSION
#define NATIVE_VERSION 4
#endif

typedef struct {
    uint32_t state[5];
    uint64_t count;
    uint8_t block[64];
} sha1;

HIDDEN void sha1_begin(sha1 *it);
HIDDEN void sha1_add(sha1 *it, const uint8_t *raw, size_t size);
HIDDEN void sha1_end(sha1 *it, uint8_t digest[20]);

/* Codes that fitted one object are tried for the next of its kind. Empty books are all zero; `free` them. */
typedef struct codebook codebook;
HIDDEN codebook *codebooks(size_t count);
HIDDEN codebook *codebook_at(codebook *books, size_t at);

/* The most bytes `zlib_pack` can need for `size` bytes. */
HIDDEN size_t zlib_bound(size_t size);
/* Writes `raw` as a zlib stream to `out`, which has room for `zlib_bound(size)`, and returns its length. */
HIDDEN size_t zlib_pack(const uint8_t *raw, size_t size, codebook *book, uint8_t *out);
/* The same without compressing, for up to 65,535 bytes. */
HIDDEN size_t zlib_store(const uint8_t *raw, size_t size, uint8_t *out);

/* The checksum zlib puts behind a stream (Adler-32). */
HIDDEN uint32_t zlib_sum(const uint8_t *raw, size_t size);

/* Whether a zlib stream holds exactly these bytes, as any inflater would read it. Empty checkers are all zero; `free`
 * them. */
typedef struct checker checker;
HIDDEN checker *checkers(size_t count);
HIDDEN checker *checker_at(checker *them, size_t at);
HIDDEN int zlib_holds(const uint8_t *packed, size_t packed_size, const uint8_t *raw, size_t size, checker *by);

#endif

/* BLAKE3-256 of many messages of at most one chunk, eight in the lanes of vectors, and the Merkle root over hashes.
 * The package `blake3` defines the right result; it takes one message a call, and is faster for one long message. */
#include "native.h"

#include <string.h>

enum { LANES = 8, CHUNK = HASH_SHORT_MAX, BLOCK = 64, HASH = 32 };
enum { CHUNK_START = 1, CHUNK_END = 2, ROOT = 8 };
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

static const uint32_t IV[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                               0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
static const uint8_t ORDER[7][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

typedef struct {
    uint8_t bytes[LANES][CHUNK]; /* zeros behind each message up to its last block */
    uint32_t size[LANES];
    uint8_t *out[LANES];
    int count;
} batch;

#define ROTATE(x, n) (((x) >> (n)) | ((x) << (32 - (n))))
#define MIX(a, b, c, d, x, y)                                                                                          \
    v[a] += v[b] + (x), v[d] = ROTATE(v[d] ^ v[a], 16), v[c] += v[d], v[b] = ROTATE(v[b] ^ v[c], 12),                  \
    v[a] += v[b] + (y), v[d] = ROTATE(v[d] ^ v[a], 8), v[c] += v[d], v[b] = ROTATE(v[b] ^ v[c], 7)

static inline uint32_t blocks_of(uint32_t size) { return size ? (size + BLOCK - 1) / BLOCK : 1; }

static inline __attribute__((always_inline)) void run_lanes(const batch *it) {
    uint32_t words[16][LANES], sizes[LANES], flags[LANES], active[LANES], most = 0;
    lanes h[8], m[16], v[16], mask;
    for (int i = 0; i < 8; i++) h[i] = (lanes){0} + IV[i];
    for (int lane = 0; lane < it->count; lane++)
        if (blocks_of(it->size[lane]) > most) most = blocks_of(it->size[lane]);
    for (uint32_t block = 0; block < most; block++) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t one[16], blocks = blocks_of(it->size[lane]);
            memcpy(one, it->bytes[lane] + (size_t)block * BLOCK, BLOCK);
            for (int i = 0; i < 16; i++) words[i][lane] = one[i];
            active[lane] = block < blocks ? ~0u : 0;
            sizes[lane] = block + 1 < blocks ? BLOCK : it->size[lane] - block * BLOCK;
            flags[lane] = (block ? 0 : CHUNK_START) | (block + 1 == blocks ? CHUNK_END | ROOT : 0);
        }
        memcpy(m, words, sizeof m);
        memcpy(v + 14, sizes, sizeof sizes), memcpy(v + 15, flags, sizeof flags), memcpy(&mask, active, sizeof mask);
        for (int i = 0; i < 8; i++) v[i] = h[i];
        for (int i = 0; i < 4; i++) v[8 + i] = (lanes){0} + IV[i];
        v[12] = v[13] = (lanes){0};
#pragma GCC unroll 7
        for (int round = 0; round < 7; round++) {
            const uint8_t *o = ORDER[round];
            MIX(0, 4, 8, 12, m[o[0]], m[o[1]]), MIX(1, 5, 9, 13, m[o[2]], m[o[3]]);
            MIX(2, 6, 10, 14, m[o[4]], m[o[5]]), MIX(3, 7, 11, 15, m[o[6]], m[o[7]]);
            MIX(0, 5, 10, 15, m[o[8]], m[o[9]]), MIX(1, 6, 11, 12, m[o[10]], m[o[11]]);
            MIX(2, 7, 8, 13, m[o[12]], m[o[13]]), MIX(3, 4, 9, 14, m[o[14]], m[o[15]]);
        }
        for (int i = 0; i < 8; i++) h[i] = (mask & (v[i] ^ v[8 + i])) | (~mask & h[i]);
    }
    memcpy(words, h, sizeof h);
    for (int lane = 0; lane < it->count; lane++)
        for (int i = 0; i < 8; i++) memcpy(it->out[lane] + 4 * i, &words[i][lane], 4);
}

static void run_plain(const batch *it) { run_lanes(it); }
#if defined(__x86_64__) && !defined(PORTABLE)
__attribute__((target("avx2"))) static void run_avx2(const batch *it) { run_lanes(it); }
__attribute__((target("avx512vl"))) static void run_avx512(const batch *it) { run_lanes(it); }
#endif

static void run(batch *it) {
#if defined(__x86_64__) && !defined(PORTABLE)
    if (__builtin_cpu_supports("avx512vl")) run_avx512(it);
    else if (__builtin_cpu_supports("avx2")) run_avx2(it);
    else
#endif
        run_plain(it);
    it->count = 0;
}

/* Add a message of two parts; at most a chunk, which the caller has checked. */
static void add(batch *it, const uint8_t *prefix, size_t prefix_size, const uint8_t *raw, size_t size, uint8_t *out) {
    uint8_t *into = it->bytes[it->count];
    size_t whole = prefix_size + size, padded = (size_t)blocks_of((uint32_t)whole) * BLOCK;
    memcpy(into, prefix, prefix_size);
    memcpy(into + prefix_size, raw, size);
    memset(into + whole, 0, padded - whole);
    it->size[it->count] = (uint32_t)whole;
    it->out[it->count++] = out;
    if (it->count == LANES) run(it);
}

/* Hash messages that lie end to end, each behind the prefix. Those above one chunk are left as they are; returns how
 * many these are, or -1. */
EXPORT int64_t ropewalk_hash_all(const uint8_t *prefix, uint64_t prefix_size, const uint8_t *raw, const uint64_t *ends,
                                 uint64_t count, uint8_t *out) {
    batch it = {.count = 0};
    int64_t left = 0;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || prefix_size > BLOCK) return -1;
    for (uint64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
        if (ends[i] < begin) return -1;
        if (ends[i] - begin > CHUNK - prefix_size) left++;
        else add(&it, prefix, prefix_size, raw + begin, ends[i] - begin, out + HASH * i);
    }
    if (it.count) run(&it);
    return left;
}

/* Hash messages of at most one chunk each, without a prefix; only on machines of little-endian order. */
void hash_short(const uint8_t *const *raw, const uint32_t *sizes, int count, uint8_t (*out)[HASH]) {
    batch it = {.count = 0};
    for (int i = 0; i < count; i++) add(&it, (const uint8_t *)"", 0, raw[i], sizes[i], out[i]);
    if (it.count) run(&it);
}

/* Hash the lines of a text, each behind the prefix. Returns how many there are; -1 if there are more than `room`, or one
 * is above one chunk. */
EXPORT int64_t ropewalk_hash_lines(const uint8_t *prefix, uint64_t prefix_size, const uint8_t *raw, uint64_t size,
                                   uint64_t room, uint8_t *out) {
    const uint8_t *const end = raw + size;
    uint64_t count = 0;
    batch it = {.count = 0};
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || prefix_size > BLOCK) return -1;
    for (const uint8_t *stop = raw; stop < end; raw = stop + 1) {
        stop = memchr(raw, '\n', (size_t)(end - raw));
        if (!stop) stop = end;
        if (count == room || (uint64_t)(stop - raw) > CHUNK - prefix_size) return -1;
        add(&it, prefix, prefix_size, raw, (size_t)(stop - raw), out + HASH * count++);
    }
    if (it.count) run(&it);
    return (int64_t)count;
}

/* Write the levels of a Merkle tree behind its leaves, each behind the one below, the root last; an odd node moves up.
 * The buffer has room for `room` nodes, leaves included. */
EXPORT int32_t ropewalk_levels(const uint8_t *prefix, uint64_t prefix_size, uint8_t *nodes, uint64_t count,
                               uint64_t room) {
    batch it = {.count = 0};
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || prefix_size > BLOCK || !count || count > room) return -1;
    for (room -= count; count > 1; room -= count) {
        uint8_t *above = nodes + HASH * count;
        if ((count + 1) / 2 > room) return -1;
        for (uint64_t i = 0; i + 1 < count; i += 2)
            add(&it, prefix, prefix_size, nodes + HASH * i, 2 * HASH, above + HASH * (i / 2));
        if (it.count) run(&it);
        if (count % 2) memcpy(above + HASH * (count / 2), nodes + HASH * (count - 1), HASH);
        nodes = above, count = (count + 1) / 2;
    }
    return 0;
}

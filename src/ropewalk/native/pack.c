/* Entries of a git pack, and its index (version 2). */
#include "native.h"

#include <stdlib.h>
#include <string.h>

enum {
    KINDS = 5, /* none, commit, tree, blob, tag */
    STORED_BLOCK_MAX = 65535, /* bytes of one stored block */
    ENTRY_HEAD_MAX = 10,
    FANOUT = 256,
    BUCKETS = 4096,
};

#define BUCKET(id) ((id)[0] << 4 | (id)[1] >> 4)

static uint32_t crc_tables[8][256];

__attribute__((constructor)) static void make_crc_tables(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t value = n;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        crc_tables[0][n] = value;
    }
    for (int table = 1; table < 8; table++)
        for (int n = 0; n < 256; n++)
            crc_tables[table][n] = crc_tables[table - 1][n] >> 8 ^ crc_tables[0][crc_tables[table - 1][n] & 255];
}

static uint32_t crc_of(const uint8_t *raw, size_t size) {
    uint32_t value = ~0u;
    for (; size >= 8; size -= 8, raw += 8) {
        value ^= (uint32_t)raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 | (uint32_t)raw[3] << 24;
        value = crc_tables[7][value & 255] ^ crc_tables[6][value >> 8 & 255] ^ crc_tables[5][value >> 16 & 255] ^
                crc_tables[4][value >> 24] ^ crc_tables[3][raw[4]] ^ crc_tables[2][raw[5]] ^ crc_tables[1][raw[6]] ^
                crc_tables[0][raw[7]];
    }
    for (; size; size--) value = value >> 8 ^ crc_tables[0][(value ^ *raw++) & 255];
    return ~value;
}

static void put32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24), at[1] = (uint8_t)(value >> 16), at[2] = (uint8_t)(value >> 8), at[3] = (uint8_t)value;
}

static size_t entry_head(int kind, size_t size, uint8_t *out) {
    size_t at = 0;
    uint8_t byte = (uint8_t)((unsigned)kind << 4 | (size & 15));
    for (size >>= 4; size; size >>= 7) {
        out[at++] = byte | 0x80;
        byte = size & 0x7f;
    }
    out[at++] = byte;
    return at;
}

/* The checksum behind a zlib stream (Adler-32). */
uint32_t adler_of(const uint8_t *raw, size_t size) {
    uint32_t a = 1, b = 0;
    while (size) {
        size_t run = size < 5552 ? size : 5552; /* the most bytes that cannot overflow */
        size -= run;
        for (; run >= 32; run -= 32, raw += 32) {
            uint32_t sum = 0, slope = 0;
            for (uint32_t n = 0; n < 32; n++) sum += raw[n], slope += (32 - n) * raw[n];
            b += 32 * a + slope;
            a += sum;
        }
        for (; run; run--) a += *raw++, b += a;
        a %= 65521, b %= 65521;
    }
    return b << 16 | a;
}

static uint64_t stream_bound(uint64_t size) { return size + (size / STORED_BLOCK_MAX + 1) * 5 + 6; }

/* Write `raw` as a zlib stream of stored blocks (RFC 1951, 3.2.4) and return its length. Rolling up compresses it. */
static size_t store(const uint8_t *raw, size_t size, uint8_t *out) {
    const uint32_t sum = adler_of(raw, size);
    uint8_t *at = out;
    *at++ = 0x78, *at++ = 0x01;
    do {
        const size_t length = size < STORED_BLOCK_MAX ? size : STORED_BLOCK_MAX;
        *at++ = length == size; /* the last block? */
        *at++ = (uint8_t)length, *at++ = (uint8_t)(length >> 8);
        *at++ = (uint8_t)~length, *at++ = (uint8_t)(~length >> 8);
        if (length) memcpy(at, raw, length);
        at += length, raw += length, size -= length;
    } while (size);
    put32(at, sum);
    return (size_t)(at + 4 - out);
}

/* The most bytes `count` objects of `bytes` bytes together can take in a pack. */
EXPORT uint64_t ropewalk_pack_bound(uint64_t count, uint64_t bytes) {
    return stream_bound(bytes) + count * (stream_bound(0) + ENTRY_HEAD_MAX);
}

/* Write objects `first` up to `last` as entries of a pack to `out`; where each begins, counted from `base`, to
 * `begins`, and the checksum for the index to `crcs` (both start with object `first`). `raw`, `ends` and `kinds` are as
 * `ropewalk_weave` leaves them. Return how many bytes were written, or -1 if they do not fit. */
EXPORT int64_t ropewalk_pack(const uint8_t *raw, const uint64_t *ends, const uint8_t *kinds, uint64_t first, uint64_t last,
                             uint8_t *out, uint64_t room, uint64_t base, uint64_t *begins, uint32_t *crcs) {
    uint64_t at = 0;
    for (uint64_t n = first; n < last; n++) {
        const uint64_t begin = n ? ends[n - 1] : 0;
        if (ends[n] < begin || kinds[n] >= KINDS || ENTRY_HEAD_MAX + stream_bound(ends[n] - begin) > room - at) return -1;
        uint8_t *entry = out + at;
        size_t size = entry_head(kinds[n], ends[n] - begin, entry);
        size += store(raw + begin, ends[n] - begin, entry + size);
        begins[n - first] = base + at;
        crcs[n - first] = crc_of(entry, size);
        at += size;
    }
    return (int64_t)at;
}

/* Moves places that were counted from the beginning of a part, when that part comes behind `by` bytes. */
EXPORT void ropewalk_shift(uint64_t *places, uint64_t count, uint64_t by) {
    for (uint64_t n = 0; n < count; n++) places[n] += by;
}

static int64_t compare(const uint8_t *ids, uint32_t one, uint32_t other) {
    return memcmp(ids + 20 * (uint64_t)one, ids + 20 * (uint64_t)other, 20);
}

/* Writes the part of an index that depends on the objects: fanout, ids in order, checksums, offsets. `out` has room
 * for 1024 + 28 bytes an object. Returns 0; 1 if an id comes twice; -1 if an offset needs more than 31 bits or there is
 * no memory. */
EXPORT int32_t ropewalk_index(uint64_t count, const uint8_t *ids, const uint32_t *crcs, const uint64_t *offsets,
                              uint8_t *out) {
    uint32_t starts[BUCKETS + 1] = {0};
    if (count > UINT32_MAX >> 1) return -1;
    uint32_t *order = malloc((count ? count : 1) * sizeof *order);
    if (!order) return -1;
    /* Ids are evenly spread, so two bytes sort nearly all of it, and neighbours the rest. */
    for (uint32_t n = 0; n < count; n++) starts[BUCKET(ids + 20 * (uint64_t)n) + 1]++;
    for (int n = 0; n < BUCKETS; n++) starts[n + 1] += starts[n];
    for (int n = 0; n < FANOUT; n++) put32(out + 4 * n, starts[(n + 1) * (BUCKETS / FANOUT)]);
    for (uint32_t n = 0; n < count; n++) order[starts[BUCKET(ids + 20 * (uint64_t)n)]++] = n;
    for (uint32_t n = 1; n < count; n++) {
        uint32_t moving = order[n], at = n;
        for (; at && compare(ids, order[at - 1], moving) > 0; at--) order[at] = order[at - 1];
        order[at] = moving;
    }
    int32_t verdict = 0;
    uint8_t *id = out + 4 * FANOUT, *crc = id + 20 * count, *offset = crc + 4 * count;
    for (uint32_t n = 0; n < count; n++, id += 20, crc += 4, offset += 4) {
        if (n && !verdict && !compare(ids, order[n - 1], order[n])) verdict = 1;
        if (offsets[order[n]] >> 31) verdict = -1;
        memcpy(id, ids + 20 * (uint64_t)order[n], 20);
        put32(crc, crcs[order[n]]);
        put32(offset, (uint32_t)offsets[order[n]]);
    }
    free(order);
    return verdict;
}

EXPORT uint32_t ropewalk_native_version(void) { return NATIVE_VERSION; }

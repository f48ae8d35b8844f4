/* Objects of a git pack by name: found in its index (version 2), copied out and named again where they are stored
 * without compression, copied as they are where they are compressed: Python inflates and names those. Whatever is
 * unusual or wrong is left to Python, which decides and reports. */
#include "native.h"

#include <string.h>
#include <unistd.h>

enum { INDEX_HEAD = 1032, TAIL = 20, KIND_MAX = 4, STORED_MAX = 1 << 20, READ_MIN = 4096, PACKED = 8 };

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Return where an object begins in its pack; 0 if the index does not have it, or is not in order. */
static uint64_t offset_of(const uint8_t *index, uint64_t count, uint64_t index_size, const uint8_t *id) {
    uint64_t low = id[0] ? get32(index + 8 + 4 * (id[0] - 1)) : 0, high = get32(index + 8 + 4 * id[0]);
    if (high > count) return 0;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = memcmp(index + INDEX_HEAD + 20 * middle, id, 20);
        if (!order) {
            const uint64_t near_at = INDEX_HEAD + 24 * count + 4 * middle;
            if (near_at + 4 > index_size) return 0;
            const uint32_t near = get32(index + near_at);
            return near >> 31 ? 0 : near;
        }
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return 0;
}

/* Copy a zlib stream of stored blocks (RFC 1951, 3.2.4) of exactly `size` bytes. Return 1, 0 if it is none, -1 if it
 * goes on behind `stop`. */
static int restore(const uint8_t *at, const uint8_t *stop, uint8_t *out, uint64_t size) {
    const uint8_t *const begin = out;
    const uint64_t whole = size;
    if (stop - at < 2) return -1;
    if ((at[0] & 15) != 8 || at[0] >> 4 > 7 || (at[0] << 8 | at[1]) % 31 || at[1] & 32) return 0;
    at += 2;
    for (int last = 0; !last;) {
        if (stop == at) return -1;
        if (at[0] > 1) return 0;
        if (stop - at < 5) return -1;
        const uint32_t length = at[1] | (uint32_t)at[2] << 8;
        last = at[0];
        if ((at[3] ^ at[1]) != 255 || (at[4] ^ at[2]) != 255 || length > size) return 0;
        if ((uint64_t)(stop - at) < 5 + (uint64_t)length) return -1;
        memcpy(out, at + 5, length);
        at += 5 + length, out += length, size -= length;
    }
    if (stop - at < 4) return -1;
    return !size && get32(at) == adler_of(begin, whole);
}

/* Copy a compressed stream of `size` bytes and what may follow it: no useful one is longer. Return how much, 0 if it is
 * no such stream, -1 if it may go on behind `stop`; `left` bytes of the pack begin at `at`. */
static int64_t copy_packed(const uint8_t *at, const uint8_t *stop, uint64_t left, uint8_t *out, uint64_t size, uint64_t room) {
    const uint64_t most = size + size / 4 + 64, wanted = most < left ? most : left;
    if (wanted > room || wanted < 3 || (stop - at > 2 && !(at[2] & 6))) return 0;
    if ((uint64_t)(stop - at) < wanted) return -1;
    memcpy(out, at, wanted);
    return (int64_t)wanted;
}

/* Copy objects `ids` to `out`, one behind the other; where each ends to `ends`, its size to `sizes`, its kind to `kinds`,
 * with PACKED for a compressed one, 0 for one that Python must read. Stop at the first that the pack does not have;
 * return how many were looked at. `window` holds what was read of the pack last. */
EXPORT int64_t ropewalk_unpack(const uint8_t *index, uint64_t index_size, int32_t pack, uint64_t pack_size, const uint8_t *ids,
                               uint64_t wanted, uint8_t *window, uint64_t window_size, uint8_t *out, uint64_t room,
                               uint64_t *ends, uint64_t *sizes, uint8_t *kinds) {
    uint64_t held_from = 0, held = 0, at = 0, reach = READ_MIN;
    if (index_size < INDEX_HEAD || pack_size < TAIL) return -1;
    const uint64_t count = get32(index + INDEX_HEAD - 4);
    if (index_size < INDEX_HEAD + 28 * count) return -1;
    for (uint64_t n = 0; n < wanted; n++) {
        const uint64_t offset = offset_of(index, count, index_size, ids + 20 * n);
        if (!offset) return (int64_t)n;
        kinds[n] = 0, ends[n] = at, sizes[n] = 0;
        if (offset >= pack_size - TAIL) continue;
        for (int again = 0; again < 2; again++) {
            if (offset < held_from || offset >= held_from + held || again) {
                /* The further objects follow each other, the more is read ahead. */
                const int follows = again || (offset >= held_from && offset < held_from + held + READ_MIN);
                const uint64_t left = pack_size - TAIL - offset;
                reach = follows ? 4 * reach : READ_MIN;
                if (reach > window_size) reach = window_size;
                const ssize_t got = pread(pack, window, left < reach ? left : reach, (off_t)offset);
                if (got <= 0) break;
                held_from = offset, held = (uint64_t)got;
            }
            const uint8_t *entry = window + (offset - held_from), *const stop = window + held;
            const int kind = *entry >> 4 & 7;
            uint64_t size = *entry & 15;
            int shift = 4;
            while (*entry & 0x80 && entry + 1 < stop && shift < 32) {
                size |= (uint64_t)(*++entry & 0x7f) << shift;
                shift += 7;
            }
            if (*entry++ & 0x80 || entry >= stop) continue;
            if (kind < 1 || kind > KIND_MAX || size > STORED_MAX || size > room - at) break;
            int64_t found = restore(entry, stop, out + at, size);
            const int packed = !found;
            if (packed) {
                const uint64_t left = pack_size - TAIL - held_from - (uint64_t)(entry - window);
                found = copy_packed(entry, stop, left, out + at, size, room - at);
            }
            if (found < 0 && again && reach < window_size) again = 0, reach = window_size;
            if (found < 0) continue;
            if (!found) break;
            uint8_t id[20];
            if (!packed) name_object(kind, out + at, size, id);
            if (!packed && memcmp(id, ids + 20 * n, 20)) break;
            at += packed ? (uint64_t)found : size, ends[n] = at, sizes[n] = size;
            kinds[n] = (uint8_t)(packed ? kind | PACKED : kind);
            break;
        }
    }
    return (int64_t)wanted;
}

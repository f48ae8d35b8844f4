/* The leaf hashes of a state map (docs/reference/ledger.md) from the canonical JSON of the state. The kernel has just
 * written that text, so it is not checked; whatever it is, reading stays inside it. */
#include "native.h"

#include <string.h>

enum { DEPTH_MAX = 128, GROUP = 32, HASH = 32, MESSAGE = HASH_SHORT_MAX };

typedef struct {
    const uint8_t *raw, *prefix, *long_hashes;
    uint64_t prefix_size, long_count, longs, long_room, (*long_spans)[2], room, count;
    uint8_t (*out)[HASH], head[MESSAGE]; /* what a leaf hashes, as far as the names that lead to it */
    size_t head_size;
    int waiting; /* leaves whose value is not hashed yet: what both hashes cover, the second without the first */
    uint8_t values[GROUP][MESSAGE], leaves[GROUP][MESSAGE];
    uint32_t value_sizes[GROUP], leaf_sizes[GROUP];
    const uint8_t *known[GROUP];
} walk;

/* Past a string that begins behind its quote; NULL if the text ends in it. */
static const uint8_t *string(const uint8_t *at, const uint8_t *end) {
    for (; at < end && *at != '"'; at++)
        if (*at == '\\' && ++at == end) return NULL;
    return at < end ? at + 1 : NULL;
}

/* Past one value; NULL if the text ends in it. */
static const uint8_t *value(const uint8_t *at, const uint8_t *end) {
    uint64_t open = 0;
    while (at && at < end) {
        const uint8_t found = *at++;
        if (found == '"') at = string(at, end);
        else if (found == '{' || found == '[') open++;
        else if ((found == '}' || found == ']') && !open--) return NULL;
        else if (found != '}' && found != ']')
            while (at < end && *at != ',' && *at != '}' && *at != ']') at++;
        if (!open) return at;
        if (at && at < end && (*at == ',' || *at == ':')) at++;
    }
    return NULL;
}

static void hash_waiting(walk *it) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *messages[GROUP];
    uint8_t hashes[GROUP][HASH];
    for (int i = 0; i < it->waiting; i++) messages[i] = it->values[i];
    hash_short(messages, it->value_sizes, it->waiting, hashes);
    for (int i = 0; i < it->waiting; i++) {
        const uint8_t *hash = it->known[i] ? it->known[i] : hashes[i];
        uint8_t *hex = it->leaves[i] + it->leaf_sizes[i] - 2 * HASH - 2;
        for (int n = 0; n < HASH; n++) hex[2 * n] = digits[hash[n] >> 4], hex[2 * n + 1] = digits[hash[n] & 15];
        messages[i] = it->leaves[i];
    }
    hash_short(messages, it->leaf_sizes, it->waiting, it->out + it->count - it->waiting);
    it->waiting = 0;
}

static int add_leaf(walk *it, const uint8_t *at, size_t size) {
    const int n = it->waiting;
    uint8_t *leaf = it->leaves[n];
    if (it->count == it->room || it->head_size + 2 * HASH + 5 > MESSAGE) return 0;
    it->known[n] = NULL, it->value_sizes[n] = 0;
    if (size <= MESSAGE - it->prefix_size) {
        memcpy(it->values[n], it->prefix, it->prefix_size);
        memcpy(it->values[n] + it->prefix_size, at, size);
        it->value_sizes[n] = (uint32_t)(it->prefix_size + size);
    } else {
        if (it->longs == it->long_room) return 0;
        if (it->longs < it->long_count) it->known[n] = it->long_hashes + HASH * it->longs;
        it->long_spans[it->longs][0] = (uint64_t)(at - it->raw);
        it->long_spans[it->longs++][1] = (uint64_t)(at - it->raw) + size;
    }
    memcpy(leaf, it->head, it->head_size), leaf += it->head_size;
    memcpy(leaf, "],\"", 3), memcpy(leaf + 3 + 2 * HASH, "\"]", 2);
    it->leaf_sizes[n] = (uint32_t)(it->head_size + 2 * HASH + 5);
    it->count++, it->waiting++;
    if (it->waiting == GROUP) hash_waiting(it);
    return 1;
}

/* Take all leaves of a text that begins with a non-empty object; 0 if a name is too long, or the text is no object. */
static int walk_object(walk *it, const uint8_t *at, const uint8_t *end) {
    size_t heads[DEPTH_MAX] = {it->head_size};
    int depth = 0;
    for (at++;;) {
        const uint8_t *name = at, *stop = at < end && *at == '"' ? string(at + 1, end) : NULL;
        size_t size = stop ? (size_t)(stop - name) : 0;
        it->head_size = heads[depth];
        if (!stop || end - stop < 2 || *stop != ':' || size + 1 > MESSAGE - it->head_size) return 0;
        if (depth) it->head[it->head_size++] = ',';
        memcpy(it->head + it->head_size, name, size), it->head_size += size;
        at = stop + 1;
        if (*at == '{' && end - at > 1 && at[1] != '}') {
            if (++depth == DEPTH_MAX) return 0;
            heads[depth] = it->head_size, at++;
            continue;
        }
        if (!(stop = value(at, end)) || !add_leaf(it, at, (size_t)(stop - at))) return 0;
        for (at = stop; at < end && *at == '}'; at++)
            if (!depth--) return at + 1 == end;
        if (at >= end || *at++ != ',') return 0;
    }
}

/* Write the leaf hashes of a state in order and return how many there are; -1 if a name is too long for a chunk, or
 * there are more than `room`. `prefixes` are those of values and of leaves. Values above a chunk are left to the
 * caller: their places in the text go to `long_spans`, and the leaves are right only in a call that has their hashes. */
EXPORT int64_t ropewalk_state_leaves(const uint8_t *raw, uint64_t size, const uint8_t *prefixes, uint64_t value_prefix,
                                     uint64_t leaf_prefix, const uint8_t *long_hashes, uint64_t long_count,
                                     uint64_t (*long_spans)[2], uint64_t long_room, uint8_t (*out)[HASH],
                                     uint64_t room) {
    const uint8_t *const end = raw + size;
    walk it;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || value_prefix > 64 || leaf_prefix > 64 || !size) return -1;
    it.raw = raw, it.prefix = prefixes, it.prefix_size = value_prefix, it.out = out, it.room = room, it.count = 0;
    it.long_hashes = long_hashes, it.long_count = long_count, it.long_spans = long_spans, it.long_room = long_room;
    it.longs = 0, it.waiting = 0, it.head_size = leaf_prefix + 2;
    memcpy(it.head, prefixes + value_prefix, leaf_prefix), memcpy(it.head + leaf_prefix, "[[", 2);
    const int object = *raw == '{' && size > 1 && raw[1] != '}';
    if (!(object ? walk_object(&it, raw, end) : add_leaf(&it, raw, size))) return -1;
    hash_waiting(&it);
    return (int64_t)it.count;
}

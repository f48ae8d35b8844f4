/* Many events that differ in a few places only, turned into git objects: each built, named by its SHA-1, and named
 * again by the next.
 *
 * A template lists what the objects of one event are made of, piece by piece:
 *   O kind               an object begins; its kind is the number git packs it under
 *   L size(u32) bytes    these bytes
 *   C column             the event's bytes in a column
 *   I object             the id of an earlier object of this event, 20 bytes
 *   H object             the same, 40 hex digits
 *   P                    the id of the last object of the event before, 40 hex digits
 *   N                    the event's number, decimal
 * Numbers are one byte unless said otherwise, u32 in the machine's own order. */
#include "native.h"

#include <string.h>

enum { OBJECTS_MAX = 32 };

static const char *const KINDS[] = {0, "commit ", "tree ", "blob ", "tag "};

static size_t decimal(uint64_t value, uint8_t *out) {
    uint8_t turned[20];
    size_t count = 0, at = 0;
    do turned[count++] = (uint8_t)('0' + value % 10);
    while (value /= 10);
    while (count) out[at++] = turned[--count];
    return at;
}

static void hex(const uint8_t id[20], uint8_t *out) {
    static const char digits[] = "0123456789abcdef";
    for (int n = 0; n < 20; n++) out[2 * n] = (uint8_t)digits[id[n] >> 4], out[2 * n + 1] = (uint8_t)digits[id[n] & 15];
}

void name_object(int kind, const uint8_t *raw, size_t size, uint8_t id[20]) {
    uint8_t head[32];
    size_t length = strlen(KINDS[kind]);
    memcpy(head, KINDS[kind], length);
    length += decimal(size, head + length);
    head[length++] = 0;
    sha1 named;
    sha1_begin(&named);
    sha1_add(&named, head, length);
    sha1_add(&named, raw, size);
    sha1_end(&named, id);
}

/* Writes the objects of `events` events: their bytes one behind the other to `raw`, from `at` up to `room`; where each
 * ends to `ends`, its id to `ids`, its kind to `kinds`, which have room for `objects` objects. `column[c]` holds the
 * bytes of column c of all events, `column_ends[c]` where each event's end. `first` is the number of the first event,
 * `previous` the id of its parent. Return where the last object ends, -1 if something does not fit. */
EXPORT int64_t ropewalk_weave(const uint8_t *template, uint64_t template_size, uint32_t columns,
                              const uint8_t *const *column, const uint64_t *const *column_ends, uint64_t events,
                              uint64_t first, const uint8_t *previous, uint8_t *raw, uint64_t at, uint64_t room,
                              uint64_t objects, uint64_t *ends, uint8_t *ids, uint8_t *kinds) {
    const uint8_t *const stop = template + template_size;
    uint64_t done = 0;
    uint8_t last[20];
    if (at > room) return -1;
    memcpy(last, previous, 20);
    for (uint64_t event = 0; event < events; event++) {
        const uint64_t event_first = done;
        uint64_t begin = at;
        int kind = 0;
        for (const uint8_t *op = template;;) {
            if (op == stop || *op == 'O') {
                if (kind) {
                    name_object(kind, raw + begin, at - begin, ids + 20 * done);
                    kinds[done] = (uint8_t)kind;
                    ends[done++] = at;
                }
                if (op == stop) break;
                if (stop - op < 2 || op[1] < 1 || op[1] > 4 || done == objects || done - event_first == OBJECTS_MAX) return -1;
                kind = op[1], begin = at, op += 2;
                continue;
            }
            const uint8_t *piece;
            uint8_t made[40];
            uint64_t size, left = (uint64_t)(stop - op);
            if (!kind) return -1;
            switch (*op) {
            case 'L': {
                uint32_t length;
                if (left < 5) return -1;
                memcpy(&length, op + 1, 4);
                if (left - 5 < length) return -1;
                piece = op + 5, size = length, op += 5 + length;
                break;
            }
            case 'C': {
                if (left < 2 || op[1] >= columns) return -1;
                const uint64_t *all = column_ends[op[1]];
                uint64_t from = event ? all[event - 1] : 0;
                if (all[event] < from) return -1;
                piece = column[op[1]] + from, size = all[event] - from, op += 2;
                break;
            }
            case 'I':
            case 'H': {
                if (left < 2 || event_first + op[1] >= done) return -1;
                const uint8_t *id = ids + 20 * (event_first + op[1]);
                if (*op == 'H') hex(id, made);
                piece = *op == 'H' ? made : id, size = *op == 'H' ? 40 : 20, op += 2;
                break;
            }
            case 'P':
                hex(last, made);
                piece = made, size = 40, op += 1;
                break;
            case 'N':
                size = decimal(first + event, made);
                piece = made, op += 1;
                break;
            default:
                return -1;
            }
            if (size > room - at) return -1;
            if (size) memcpy(raw + at, piece, size);
            at += size;
        }
        if (done == event_first) return -1;
        memcpy(last, ids + 20 * (done - 1), 20);
    }
    return (int64_t)at;
}

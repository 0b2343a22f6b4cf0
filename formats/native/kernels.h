/* The kernels: functions called from Python (`formats/native` declares each with its types), and shared helpers.
 *
 * An array is passed as its address and its length in elements, or in rows if it has two dimensions. Rows may be
 * unaligned. The caller guarantees the lengths and nothing else: each kernel keeps every index within them.
 */
#ifndef MQTOOL_KERNELS_H
#define MQTOOL_KERNELS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are little-endian here; such machines use the reference code"
#endif

#define KERNEL __attribute__((visibility("default")))
#define PART static inline

/* RECORD, EXPECTED and QUEUE_TALLY of formats/record/rows.py. */
typedef struct __attribute__((packed)) {
    int64_t phy_offset, queue_offset, store_timestamp, tags_code;
    int32_t size, queue, sys_flag;
    uint16_t bits, hashes;
} record_row;

typedef struct __attribute__((packed)) {
    int64_t queue_offset, phy_offset, tags_code, store_timestamp;
    int32_t size, queue;
    uint16_t bits;
} expected_row;

typedef struct __attribute__((packed)) {
    int64_t first, last, positions, least, most;
    uint64_t sum;
    uint16_t bits;
    bool fallen;
} queue_tally;

/* Constants that have a name in Python; tests compare them. */
enum {
    BIT_HAS_TAGS = 1, BIT_DELAY = 2, BIT_LMQ = 4, BIT_PROP_CRC = 8, BIT_V2 = 16, BIT_STALE = 32, BIT_SUPERSEDED = 64,
    BIT_HAS_UNIQ = 128, BIT_FILLER = 256, BIT_MARKER = 512, BIT_INNER_BATCH = 1024, BIT_MISNUMBERED = 2048,
    BIT_CONTRADICTED_FLAG = 4096, BIT_UNSERVED = 8192,
    NOT_IN_QUEUE = BIT_STALE | BIT_SUPERSEDED | BIT_MISNUMBERED,
    NO_MESSAGE = BIT_STALE | BIT_SUPERSEDED | BIT_FILLER | BIT_MARKER,
    STAND_IN = BIT_FILLER | BIT_MARKER, UNINDEXED = BIT_STALE | STAND_IN,
    TRANSACTION = 0x00C, TRANSACTION_NOT = 0, TRANSACTION_COMMIT = 8, TRANSACTION_ROLLBACK = 0x00C,
    NEED_MORE = 0, AT_BLANK = 1, FALLBACK = 2, OUTPUT_FULL = 3,
    QUEUE_COLUMNS = 3,
    TAKE_KEYS = 1, TAKE_ALL = 2,
};

/* Numbers at any byte, in file order (big-endian). */
PART uint16_t u16_at(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
PART uint32_t u32_at(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
PART uint64_t u64_at(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
PART int64_t i16_at(const uint8_t *p) { return (int16_t)u16_at(p); }
PART int64_t i32_at(const uint8_t *p) { return (int32_t)u32_at(p); }
PART int64_t i64_at(const uint8_t *p) { return (int64_t)u64_at(p); }

/* A hash of a unit's content and its place; `place_hashes` of rows.py computes the same. */
PART uint64_t stirred(uint64_t x, uint64_t value) {
    x ^= value;
    x = (x ^ x >> 32) * 0x9E3779B97F4A7C15u;
    return (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
}

PART uint64_t place_hash(uint64_t seed, int64_t place, int64_t phy_offset, int64_t value, int64_t last) {
    uint64_t x = stirred(seed, (uint64_t)place);
    x = stirred(stirred(stirred(x, (uint64_t)phy_offset), (uint64_t)value), (uint64_t)last);
    return x ^ x >> 32;
}

/* A hash of an index unit without its number and chain link: units are added up before their numbers are known. */
PART uint64_t unit_hash(uint64_t seed, int64_t phy_offset, int64_t key_hash, int64_t seconds) {
    uint64_t x = stirred(stirred(stirred(seed, (uint64_t)phy_offset), (uint64_t)key_hash), (uint64_t)seconds);
    return x ^ x >> 32;
}

PART int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
PART int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* A number clamped to [0, size]: for lengths and places from untrusted input. */
PART int64_t within(int64_t number, int64_t size) { return most(least(number, size), 0); }

/* Whether a number is an index into `size` elements. */
PART bool is_index(int64_t number, int64_t size) { return (uint64_t)number < (uint64_t)size; }

/* Whether the queue offset of such a row counts in its queue: ordinary and committed messages, no filler. */
PART bool is_numbered(int64_t sys_flag, int64_t bits) {
    int64_t kind = sys_flag & TRANSACTION;
    return (kind == TRANSACTION_NOT || kind == TRANSACTION_COMMIT) && !(bits & BIT_FILLER);
}

/* Number of a record's hashes that an index has under a rule: all, or those of its keys without the tags' one. */
PART int64_t wanted_by(int64_t rule, const record_row *row) {
    if (row->bits & UNINDEXED) return 0;
    return rule == TAKE_KEYS && row->bits & BIT_HAS_TAGS && row->hashes > 0 ? row->hashes - 1 : row->hashes;
}

PART int64_t wanted_keys(const record_row *row, int64_t number, const uint8_t *take, int64_t takes) {
    if (takes <= 1) number = 0;
    return is_index(number, takes) ? wanted_by(take[number], row) : 0;
}


/* crc.c */
uint32_t crc32_of(const uint8_t *data, int64_t length);
KERNEL int64_t mq_crc32(const uint8_t *data, int64_t size, int64_t start, int64_t length, int64_t portable);
KERNEL int64_t mq_crc_is_fast(void);
KERNEL int64_t mq_bits_that_change(int64_t length, int64_t change, int64_t *found, int64_t room);

/* walk.c */
KERNEL void mq_walk_records(
    const uint8_t *data, int64_t size, int64_t position, int64_t available, int64_t window_offset, int64_t file_end,
    record_row *records, int64_t rows, int32_t *hashes, int64_t hash_room, int32_t *slots, int64_t slot_count,
    uint8_t *names, int64_t name_room, int64_t *queue_table, int64_t queue_room, int64_t seed, int64_t *state,
    int64_t state_size, int64_t with_keys, int64_t stop, const int64_t *ranges, int64_t range_count,
    int64_t *result);
KERNEL int64_t mq_fill_slots(int32_t *slots, int64_t slot_count, const uint8_t *names, int64_t name_room,
                             const int64_t *queue_table, int64_t queue_room, int64_t first, int64_t queues,
                             int64_t seed);

/* rows.c */
KERNEL void mq_note_last(const record_row *records, int64_t rows, int64_t *last_offset, int64_t queues,
                         int64_t *reached, int64_t reached_size);
KERNEL int64_t mq_group_rows(const record_row *records, int64_t rows, const bool *wanted, int64_t queues,
                             int64_t *next_place, int64_t places, const int64_t *stops, int64_t stops_size,
                             expected_row *out, int64_t room);
KERNEL void mq_tally_rows(const record_row *records, int64_t rows, int64_t seed, queue_tally *queues,
                          int64_t queue_count, int64_t *totals, int64_t totals_size);
KERNEL int64_t mq_unit_sum(const uint8_t *units, int64_t size, int64_t first, int64_t seed);

/* index.c */
KERNEL int64_t mq_check_chains(const int32_t *units, int64_t unit_rows, int64_t count, const int32_t *slots,
                               int64_t slot_count, uint8_t *classes, int64_t classes_size, int32_t *heads,
                               int64_t heads_size, uint8_t *slot_flags, int64_t flags_size);
KERNEL void mq_follow_units(const int32_t *units, int64_t unit_rows, int64_t number, int64_t seed, int32_t *slots,
                            int64_t slot_count, int64_t *result);
KERNEL int64_t mq_count_wanted(const record_row *records, int64_t rows, const uint8_t *take, int64_t takes,
                               int64_t *wanted, int64_t room);
KERNEL void mq_put_keys(int32_t *units, int64_t unit_rows, int64_t base, int32_t *slots,
                        int64_t slot_count, const record_row *records, int64_t rows, const int32_t *hashes,
                        int64_t hash_count, const uint8_t *take, int64_t takes, int64_t limit, int64_t *state,
                        int64_t state_size);
KERNEL void mq_sum_keys(const record_row *records, int64_t rows, const int32_t *hashes, int64_t hash_count,
                        const uint8_t *take, int64_t takes, int64_t limit, int64_t seconds, int64_t seed,
                        int64_t *state, int64_t state_size, int64_t *result);

/* lines.c */
KERNEL void mq_write_lines(const uint8_t *data, int64_t size, const int64_t *starts, int64_t count,
                           const int64_t *sizes, int64_t sizes_size, int64_t first, int64_t csv, const uint8_t *file,
                           int64_t file_size, int64_t at, uint8_t *lines, int64_t room, int64_t *result);

#endif

/* Index files: chains against hashes, and put. Source: broker classes IndexFile and IndexService.
 *
 * Units in native order are five int32: key hash, two halves of the phy offset, time difference, previous. */
#include "kernels.h"

enum { WORDS = 5, KEY_HASH = 0, HIGH, LOW, TIME, PREVIOUS };
enum { NO_RECORD, RIGHT, DUPLICATE, OTHER_KEY, EXPIRED, LOST, CLASS = 7, WRONG_TIME = 8, WRONG_CHAIN = 16,
       CHAIN_LOOP = 32 };
enum { SLOT_OUT_OF_RANGE = 1, SLOT_WRONG = 2 };
enum { MAX_TIME_DIFF = 0x7FFFFFFF, POSITIVE = 0x7FFFFFFF };
enum { NUMBER, RECORD, KEY, HASH, USED_SLOTS, BEGIN, END, BEGIN_OFFSET, END_OFFSET, STATE_SIZE,
       TAGGED = STATE_SIZE, FIRST_TAGGED, LAST_TAGGED, SUM_STATE_SIZE };

/* Convert a word between native and file order. */
PART int32_t swapped(int64_t word) { return (int32_t)__builtin_bswap32((uint32_t)word); }

/* Seconds from `begin` to `timestamp` (both ms) as IndexFile.putKey stores them. */
PART int32_t time_diff(int64_t begin, int64_t timestamp) {
    if (begin <= 0 || timestamp <= begin) return 0;
    return (int32_t)least((timestamp - begin) / 1000, MAX_TIME_DIFF);
}

/* A number of slots with the constants to divide by it: divisions cost more than all else done for a key. */
typedef struct {
    uint64_t size, factor;
    int shift;
} divisor;

static divisor divisor_of(int64_t slots) {
    uint64_t size = (uint64_t)least(slots, (int64_t)POSITIVE + 1);
    int bits = 0;
    while (1ull << bits < size) bits++;
    return (divisor){size, ((1ull << (31 + bits)) + size - 1) / size, 31 + bits};
}

/* A hash, which is never negative, modulo the number of slots. */
PART int64_t slot_of(int32_t hash, divisor by) {
    uint64_t value = (uint32_t)hash & POSITIVE;
    return (int64_t)(value - (value * by.factor >> by.shift) * by.size);
}

/* --- chains --- */

PART bool is_trusted(uint8_t class_and_flags) {
    int kind = class_and_flags & CLASS;
    return kind == RIGHT || kind == DUPLICATE;
}

PART bool stands_between(const uint8_t *classes, int64_t low, int64_t number, int64_t high) {
    return low >= 0 && low < number && number < high && !is_trusted(classes[number]);
}

int64_t mq_check_chains(const int32_t *units, int64_t unit_rows, int64_t count, const int32_t *slots,
                        int64_t slot_count, uint8_t *classes, int64_t classes_size, int32_t *heads,
                        int64_t heads_size, uint8_t *slot_flags, int64_t flags_size) {
    count = least(count, least(unit_rows, classes_size));
    slot_count = least(slot_count, least(heads_size, flags_size));
    if (slot_count < 1) return 0;
    for (int64_t number = 1; number < count; number++) {
        const int32_t *unit = units + number * WORDS;
        int32_t previous = unit[PREVIOUS], value = unit[KEY_HASH];
        bool trusted = is_trusted(classes[number]);
        int kind = classes[number] & CLASS;
        int32_t *head = heads + (value >= 0 ? value % slot_count : 0);
        if (previous >= number) {
            classes[number] |= CHAIN_LOOP;
            if (!trusted) continue;
        } else if (trusted || (value >= 0 && previous == *head)) {
            if (previous != *head && !stands_between(classes, *head, previous, number))
                classes[number] |= WRONG_CHAIN;
        } else {
            if (kind == EXPIRED || kind == LOST) classes[number] |= WRONG_CHAIN;
            continue;
        }
        *head = (int32_t)number;
    }
    int64_t used = 0;
    for (int64_t slot = 0; slot < slot_count; slot++) {
        int32_t value = slots[slot], head = heads[slot];
        used += head > 0;
        if (value == head || stands_between(classes, head, value, count)) continue;
        slot_flags[slot] = value < 0 || value >= count ? SLOT_OUT_OF_RANGE : SLOT_WRONG;
    }
    return used;
}

/* --- puts --- */

int64_t mq_count_wanted(const record_row *records, int64_t rows, const uint8_t *take, int64_t takes, int64_t *wanted,
                        int64_t room) {
    int64_t sum = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t count = wanted_keys(records + row, row, take, takes);
        if (row < room) wanted[row] = count;
        sum += count;
    }
    return sum;
}

void mq_put_keys(int32_t *units, int64_t unit_rows, int64_t base, int32_t *slots,
                 int64_t slot_count, const record_row *records, int64_t rows, const int32_t *hashes,
                 int64_t hash_count, const uint8_t *take, int64_t takes, int64_t limit, int64_t *state,
                 int64_t state_size) {
    enum { AHEAD = 96 };
    if (state_size < STATE_SIZE || slot_count < 1 || state[NUMBER] < base) return;
    if (state[RECORD] < 0 || state[KEY] < 0 || state[HASH] < 0) return;
    int64_t row = state[RECORD], key = state[KEY], number = state[NUMBER], at = state[HASH], used = state[USED_SLOTS];
    divisor by = divisor_of(slot_count);
    limit = least(limit, base + unit_rows);
    for (; row < rows; row++, key = 0) {
        const record_row *it = records + row;
        int64_t wanted = least(wanted_keys(it, row, take, takes), hash_count - at);
        if (key < wanted && number < limit) {
            int64_t phy = it->phy_offset, stored = it->store_timestamp;
            int32_t high = swapped(phy >> 32), low = swapped(phy);
            /* the time difference of the file's first unit counts from the end of the previous file */
            int32_t seconds = swapped(time_diff(state[BEGIN], stored));
            if (number == 1) state[BEGIN] = stored, state[BEGIN_OFFSET] = phy;
            state[END] = stored, state[END_OFFSET] = phy;
            for (; key < wanted && number < limit; key++, number++) {
                /* 5,000,000 slots do not fit into the caches near the core */
                if (at + key + AHEAD < hash_count)
                    __builtin_prefetch(slots + slot_of(hashes[at + key + AHEAD], by), 1);
                int32_t *slot = slots + slot_of(hashes[at + key], by), *unit = units + (number - base) * WORDS;
                unit[KEY_HASH] = swapped(hashes[at + key]);
                unit[HIGH] = high;
                unit[LOW] = low;
                unit[TIME] = seconds;
                unit[PREVIOUS] = swapped(*slot);
                /* a branch would be mispredicted half the time, and wait for the slot */
                used += *slot == 0;
                *slot = (int32_t)number;
                if (number == 1) seconds = 0;
            }
        }
        if (key < wanted) break;
        at += it->hashes;
    }
    state[RECORD] = row, state[KEY] = key, state[HASH] = at, state[NUMBER] = number, state[USED_SLOTS] = used;
}

void mq_sum_keys(const record_row *records, int64_t rows, const int32_t *hashes, int64_t hash_count,
                 const uint8_t *take, int64_t takes, int64_t limit, int64_t seconds, int64_t seed, int64_t *state,
                 int64_t state_size, int64_t *result) {
    uint64_t plain = 0, by_number = 0;
    result[0] = result[1] = 0;
    if (state_size < SUM_STATE_SIZE || state[RECORD] < 0 || state[KEY] < 0 || state[HASH] < 0) return;
    int64_t row = state[RECORD], key = state[KEY], number = state[NUMBER], at = state[HASH];
    for (; row < rows; row++, key = 0) {
        const record_row *it = records + row;
        int64_t wanted = least(wanted_keys(it, row, take, takes), hash_count - at);
        if (key < wanted && number < limit) {
            int64_t stored = it->store_timestamp, passed = time_diff(state[BEGIN], stored);
            state[END] = stored, state[END_OFFSET] = it->phy_offset;
            for (; key < wanted && number < limit; key++, number++) {
                uint64_t hash = unit_hash((uint64_t)seed, it->phy_offset, hashes[at + key],
                                          seconds >= 0 ? seconds : passed);
                plain += hash, by_number += (uint64_t)number * hash;
                seconds = -1;
            }
        }
        if (key < wanted) break;
        at += it->hashes;
        if (!(it->bits & BIT_HAS_TAGS) || it->bits & UNINDEXED || it->hashes <= 0) continue;
        if (!state[TAGGED]++) state[FIRST_TAGGED] = it->phy_offset;
        state[LAST_TAGGED] = it->phy_offset;
    }
    state[RECORD] = row, state[KEY] = key, state[HASH] = at, state[NUMBER] = number;
    result[0] = (int64_t)plain, result[1] = (int64_t)by_number;
}

void mq_follow_units(const int32_t *units, int64_t unit_rows, int64_t number, int64_t seed, int32_t *slots,
                     int64_t slot_count, int64_t *result) {
    enum { AHEAD = 48 };
    divisor by = divisor_of(most(slot_count, 1));
    uint64_t plain = 0, by_number = 0;
    int64_t wrong = 0;
    for (int64_t row = 0; row < unit_rows; row++, number++) {
        const int32_t *unit = units + row * WORDS;
        int32_t hash = swapped(unit[KEY_HASH]);
        int64_t phy = (int64_t)((uint64_t)(uint32_t)swapped(unit[HIGH]) << 32 | (uint32_t)swapped(unit[LOW]));
        uint64_t own = unit_hash((uint64_t)seed, phy, hash, swapped(unit[TIME]));
        plain += own, by_number += (uint64_t)number * own;
        if (!slot_count) continue;
        if (row + AHEAD < unit_rows)
            __builtin_prefetch(slots + slot_of(swapped(unit[AHEAD * WORDS + KEY_HASH]), by), 1);
        int32_t *slot = slots + slot_of(hash, by);
        wrong += swapped(unit[PREVIOUS]) != *slot;
        *slot = (int32_t)number;
    }
    result[0] = (int64_t)plain, result[1] = (int64_t)by_number, result[2] = wrong;
}

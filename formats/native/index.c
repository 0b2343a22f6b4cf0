/* Index files: units against records, chains against hashes, and put. Source: broker classes
 * IndexFile and IndexService.
 *
 * Units in native order are five int32: key hash, two halves of the phy offset, time difference, previous. */
#include "kernels.h"

enum { WORDS = 5, KEY_HASH = 0, HIGH, LOW, TIME, PREVIOUS };
enum { NO_RECORD, RIGHT, DUPLICATE, OTHER_KEY, EXPIRED, LOST, CLASS = 7, WRONG_TIME = 8, WRONG_CHAIN = 16,
       CHAIN_LOOP = 32 };
enum { TAG_UNKNOWN, TAG_ABSENT, TAG_PRESENT };
enum { SLOT_OUT_OF_RANGE = 1, SLOT_WRONG = 2 };
enum { MAX_TIME_DIFF = 0x7FFFFFFF, POSITIVE = 0x7FFFFFFF };

PART int64_t phy_offset_of(const int32_t *units, int64_t number) {
    const int32_t *unit = units + number * WORDS;
    return (int64_t)((uint64_t)(uint32_t)unit[HIGH] << 32 | (uint32_t)unit[LOW]);
}

/* Seconds from `begin` to `timestamp` (both ms) as IndexFile.putKey stores them. */
PART int32_t time_diff(int64_t begin, int64_t timestamp) {
    if (begin <= 0 || timestamp <= begin) return 0;
    return (int32_t)least((timestamp - begin) / 1000, MAX_TIME_DIFF);
}

/* A number of slots with what divides by it: divisions take longer than all else that is done for a key. */
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

/* --- units of a whole file against the records of one split --- */

typedef struct {
    const int32_t *units;
    int64_t unit_count; /* of the numbers [0, unit_count) each is a unit */
    const int64_t *order;
    int64_t order_size;
    bool ordered;
} unit_list;

/* The number that stands at a place; 0, which is no unit's, for one outside of the file. */
PART int64_t number_at(const unit_list *list, int64_t place) {
    int64_t number = list->ordered ? place : is_index(place - 1, list->order_size) ? list->order[place - 1] : 0;
    return is_index(number, list->unit_count) ? number : 0;
}

/* Give the units at [start, stop), which name one record, their classes; the highest right number, 0 for none. */
static int64_t match_group(const unit_list *list, int64_t start, int64_t stop, const int32_t *hashes, int64_t keys,
                           int64_t first, uint8_t *found, uint8_t *classes, int32_t expected_time) {
    int64_t cursor = 0, newest = 0;
    for (int64_t at = start; at < stop; at++) {
        int64_t number = number_at(list, at);
        const int32_t *unit = list->units + number * WORDS;
        uint8_t kind = OTHER_KEY;
        for (int64_t step = 0; step < keys; step++) {
            int64_t key = cursor + step < keys ? cursor + step : cursor + step - keys;
            if (hashes[first + key] != unit[KEY_HASH]) continue;
            kind = DUPLICATE;
            if (is_set(found, first + key)) continue;
            set_bit(found, first + key);
            cursor = key + 1;
            kind = RIGHT;
            break;
        }
        if (kind != OTHER_KEY) {
            newest = most(newest, number);
            if (number > 1 && unit[TIME] != expected_time) kind |= WRONG_TIME;
        }
        classes[number] = kind;
    }
    return newest;
}

PART bool all_found(const uint8_t *found, int64_t first, int64_t keys) {
    for (int64_t key = 0; key < keys; key++)
        if (!is_set(found, first + key)) return false;
    return true;
}

/* Whether the record has its tag unit. Unknown when the place where it would be holds something broken. */
static uint8_t tag_state(const unit_list *list, int64_t count, int64_t newest, rows_view rows, int64_t row,
                         int64_t first, const uint8_t *found) {
    int64_t keys = rows.at[row].hashes;
    if (is_set(found, first + keys - 1)) return TAG_PRESENT;
    if (newest == 0 || newest + 1 >= count || !all_found(found, first, keys - 1)) return TAG_UNKNOWN;
    int64_t following = phy_offset_of(list->units, newest + 1);
    for (int64_t later = row + 1; later < rows.size; later++) {
        const record_row *it = rows.at + later;
        if (it->phy_offset == following) return TAG_ABSENT;
        if (it->hashes - (it->bits & BIT_HAS_TAGS) > 0 && !(it->bits & UNINDEXED)) return TAG_UNKNOWN;
    }
    return following > rows.at[row].phy_offset ? TAG_ABSENT : TAG_UNKNOWN;
}

/* Whether `hashes` and the bits of `found` have room for a record's keys from `first` on. */
PART bool has_room(int64_t first, int64_t keys, int64_t hash_count, int64_t found_size) {
    return first >= 0 && first <= hash_count - keys && first <= found_size * 8 - keys;
}

void mq_match_records(
    const int32_t *units, int64_t unit_rows, int64_t count, const int64_t *order, int64_t order_size, int64_t ordered,
    int64_t *state, int64_t state_size, const record_row *records, int64_t rows, const int32_t *hashes,
    int64_t hash_count, uint8_t *found, int64_t found_size, uint8_t *classes, int64_t classes_size, int64_t begin,
    uint8_t *tag_states, int64_t tag_states_size) {
    enum { PLACE, STAND_IN_END, MATCH_STATE };
    unit_list list = {units, least(unit_rows, classes_size), order, order_size, ordered != 0};
    count = least(count, list.ordered ? list.unit_count : order_size + 1);
    rows = least(rows, tag_states_size);
    if (state_size < MATCH_STATE || state[PLACE] < 0 || list.unit_count < 1) return;
    int64_t place = state[PLACE], first = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (place >= count) return;
        const record_row *it = records + row;
        int64_t phy = it->phy_offset, keys = it->hashes;
        if (!has_room(first, keys, hash_count, found_size)) break;
        for (; place < count; place++) {
            int64_t number = number_at(&list, place), offset = phy_offset_of(units, number);
            if (offset >= phy) break;
            if (offset < state[STAND_IN_END]) classes[number] = LOST;
        }
        int64_t start = place;
        while (place < count && phy_offset_of(units, number_at(&list, place)) == phy) place++;
        if (it->bits & STAND_IN) {
            state[STAND_IN_END] = phy + it->size;
            for (int64_t at = start; at < place; at++) classes[number_at(&list, at)] = LOST;
        } else if (place > start && !(it->bits & BIT_GHOST)) {
            int64_t newest = match_group(&list, start, place, hashes, keys, first, found, classes,
                                         time_diff(begin, it->store_timestamp));
            if (it->bits & BIT_HAS_TAGS && keys > 0)
                tag_states[row] = tag_state(&list, least(count, list.unit_count), newest,
                                            (rows_view){records, rows}, row, first, found);
        }
        first += keys;
    }
    state[PLACE] = place;
}

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

void mq_put_keys(int32_t *units, int64_t unit_rows, int64_t base, int32_t *slots,
                 int64_t slot_count, const record_row *records, int64_t rows, const int32_t *hashes,
                 int64_t hash_count, const uint8_t *take, int64_t takes, int64_t limit, int64_t *state,
                 int64_t state_size) {
    enum { NUMBER, RECORD, KEY, HASH, USED_SLOTS, BEGIN, END, BEGIN_OFFSET, END_OFFSET, SIZE, AHEAD = 96 };
    if (state_size < SIZE || slot_count < 1 || state[NUMBER] < base) return;
    if (state[RECORD] < 0 || state[KEY] < 0 || state[HASH] < 0) return;
    int64_t row = state[RECORD], key = state[KEY], number = state[NUMBER], at = state[HASH], used = state[USED_SLOTS];
    divisor by = divisor_of(slot_count);
    limit = least(limit, base + unit_rows);
#define WORD(value) (int32_t)__builtin_bswap32((uint32_t)(value))
    for (; row < rows; row++, key = 0) {
        const record_row *it = records + row;
        int64_t wanted = least(wanted_keys(it, row, take, takes), hash_count - at);
        if (key < wanted && number < limit) {
            int64_t phy = it->phy_offset, stored = it->store_timestamp;
            int32_t high = WORD(phy >> 32), low = WORD(phy);
            /* that of the file's first unit counts from the end of the file before */
            int32_t seconds = WORD(time_diff(state[BEGIN], stored));
            if (number == 1) state[BEGIN] = stored, state[BEGIN_OFFSET] = phy;
            state[END] = stored, state[END_OFFSET] = phy;
            for (; key < wanted && number < limit; key++, number++) {
                /* 5,000,000 slots are more than the caches near the core hold */
                if (at + key + AHEAD < hash_count)
                    __builtin_prefetch(slots + slot_of(hashes[at + key + AHEAD], by), 1);
                int32_t *slot = slots + slot_of(hashes[at + key], by), *unit = units + (number - base) * WORDS;
                unit[KEY_HASH] = WORD(hashes[at + key]);
                unit[HIGH] = high;
                unit[LOW] = low;
                unit[TIME] = seconds;
                unit[PREVIOUS] = WORD(*slot);
                /* a branch would be guessed wrong every second time, and have to wait for the slot */
                used += *slot == 0;
                *slot = (int32_t)number;
                if (number == 1) seconds = 0;
            }
        }
        if (key < wanted) break;
        at += it->hashes;
    }
#undef WORD
    state[RECORD] = row, state[KEY] = key, state[HASH] = at, state[NUMBER] = number, state[USED_SLOTS] = used;
}

/* Passes over rows in log order: queues renumbered and picked, where each stands, what the whole log has. */
#include "kernels.h"

void mq_renumber(record_row *records, int64_t rows, const int32_t *numbers, int64_t queues) {
    for (int64_t row = 0; row < rows; row++)
        if (is_index(records[row].queue, queues)) records[row].queue = numbers[records[row].queue];
}

int64_t mq_pick_rows(const record_row *records, int64_t rows, const bool *wanted, int64_t queues, record_row *picked,
                     int64_t room) {
    int64_t count = 0;
    for (int64_t row = 0; row < rows && count < room; row++) {
        int32_t queue = records[row].queue;
        if (is_index(queue, queues) && wanted[queue]) memmove(picked + count++, records + row, sizeof *picked);
    }
    return count;
}

void mq_note_last(const record_row *records, int64_t rows, int64_t *last_offset, int64_t queues, int64_t *reached,
                  int64_t reached_size) {
    queues = least(queues, reached_size);
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int32_t queue = it->queue;
        if (!is_index(queue, queues) || !is_numbered(it->sys_flag, it->bits)) continue;
        int64_t before = it->queue_offset - 1;
        if (before <= reached[queue] || before == last_offset[queue]) reached[queue] = it->queue_offset;
        last_offset[queue] = it->queue_offset;
    }
}

int64_t mq_order_rows(const record_row *records, int64_t rows, int64_t first, const bool *wanted, int64_t queues,
                      int64_t *next_place, int64_t places, const int64_t *stops, int64_t stops_size, int64_t *order,
                      int64_t order_size) {
    queues = least(queues, least(places, stops_size));
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int32_t queue = it->queue;
        if (!is_index(queue, queues) || !wanted[queue] || it->bits & NO_PLACE || !is_numbered(it->sys_flag, it->bits))
            continue;
        if (next_place[queue] >= stops[queue] || !is_index(next_place[queue], order_size)) return 0;
        order[next_place[queue]++] = first + row;
    }
    return 1;
}

void mq_take_rows(const record_row *records, int64_t rows, int64_t first, const int64_t *queues, int64_t queue_count,
                  int64_t *next_place, int64_t places, const int64_t *stops, int64_t stops_size, const int64_t *order,
                  int64_t order_size, int64_t start, expected_row *out, int64_t room) {
    for (int64_t k = 0; k < queue_count; k++) {
        int64_t queue = queues[k];
        if (!is_index(queue, least(places, stops_size))) continue;
        int64_t place = next_place[queue], stop = least(least(stops[queue], order_size), start + room);
        for (; place >= most(start, 0) && place < stop && is_index(order[place] - first, rows); place++) {
            const record_row *it = records + (order[place] - first);
            out[place - start] = (expected_row){
                it->queue_offset, it->phy_offset, it->tags_code, it->store_timestamp, it->size, it->queue, it->bits,
            };
        }
        next_place[queue] = place;
    }
}

/* Add what rows call for by a rule to a span. The first and the last row that call for any are near the ends. */
static void add_to_span(int64_t *span, int64_t units, int64_t indexed, const record_row *records, int64_t rows,
                        int64_t rule) {
    if (!indexed) return;
    span[SPAN_UNITS] += units;
    span[SPAN_RECORDS] += indexed;
    int64_t row = rows - 1;
    while (row > 0 && !wanted_by(rule, records + row)) row--;
    span[SPAN_LAST] = records[row].phy_offset;
    if (span[SPAN_FIRST] >= 0) return;
    for (row = 0; row < rows - 1 && !wanted_by(rule, records + row);) row++;
    span[SPAN_FIRST] = records[row].phy_offset;
}

void mq_tally_rows(const record_row *records, int64_t rows, int64_t *last_offset, int64_t queues, bool *fallen,
                   int64_t fallen_size, int64_t *counts, int64_t counts_size, int64_t *lowest, int64_t lowest_size,
                   int64_t *highest, int64_t highest_size, int64_t *totals, int64_t totals_size, int64_t *spans,
                   int64_t span_rows) {
    enum { MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS, TOTALS };
    if (totals_size < TOTALS) return;
    queues = least(least(queues, fallen_size), least(counts_size, least(lowest_size, highest_size)));
    /* kept at hand: as far as the compiler knows, any of these arrays may share its memory with any other */
    int64_t messages = 0, fillers = 0, markers = 0, units = 0, indexed = 0, of_keys = 0, with_keys = 0;
    int64_t last_time = totals[LAST_TIME], newest_time = totals[NEWEST_TIME];
    int64_t all_bits = totals[BITS], all_flags = totals[FLAGS];
    bool counts_units = span_rows > 1;
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int64_t bits = it->bits, queue = it->queue, offset = it->queue_offset;
        if (bits & BIT_GHOST) continue;
        if (counts_units) {
            int64_t wanted = wanted_by(TAKE_KEYS, it);
            of_keys += wanted;
            with_keys += wanted > 0;
            wanted = wanted_by(TAKE_ALL, it);
            units += wanted;
            indexed += wanted > 0;
        }
        if (!is_index(queue, queues)) continue;
        bool numbered = is_numbered(it->sys_flag, bits);
        if (numbered) {
            if (offset <= last_offset[queue]) fallen[queue] = true;
            last_offset[queue] = offset;
        }
        last_time = it->store_timestamp;
        newest_time = most(newest_time, last_time);
        fillers += (bits & BIT_FILLER) != 0;
        markers += (bits & BIT_MARKER) != 0;
        if (bits & BIT_SUPERSEDED) continue;
        messages += (bits & NO_MESSAGE) == 0;
        all_bits |= bits;
        all_flags |= it->sys_flag;
        if (numbered && !(bits & BIT_STRAY)) {
            if (offset < lowest[queue]) lowest[queue] = offset;
            if (offset > highest[queue]) highest[queue] = offset;
            counts[queue]++;
        }
    }
    totals[MESSAGES] += messages;
    totals[FILLERS] += fillers;
    totals[MARKERS] += markers;
    totals[LAST_TIME] = last_time, totals[NEWEST_TIME] = newest_time;
    totals[BITS] = all_bits, totals[FLAGS] = all_flags;
    if (counts_units) {
        add_to_span(spans, of_keys, with_keys, records, rows, TAKE_KEYS);
        add_to_span(spans + SPAN, units, indexed, records, rows, TAKE_ALL);
    }
}

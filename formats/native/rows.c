/* Passes over rows in log order: queue by queue, where each stands, what the whole log has. */
#include "kernels.h"

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

int64_t mq_group_rows(const record_row *records, int64_t rows, const bool *wanted, int64_t queues, int64_t *next_place,
                      int64_t places, const int64_t *stops, int64_t stops_size, expected_row *out, int64_t room) {
    queues = least(queues, least(places, stops_size));
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int32_t queue = it->queue;
        if (!is_index(queue, queues) || !wanted[queue] || it->bits & NOT_IN_QUEUE || !is_numbered(it->sys_flag, it->bits))
            continue;
        int64_t place = next_place[queue];
        if (place >= stops[queue] || !is_index(place, room)) return 0;
        out[place] = (expected_row){
            it->queue_offset, it->phy_offset, it->tags_code, it->store_timestamp, it->size, queue, it->bits,
        };
        next_place[queue] = place + 1;
    }
    return 1;
}

void mq_tally_rows(const record_row *records, int64_t rows, int64_t *last_offset, int64_t queues, bool *fallen,
                   int64_t fallen_size, int64_t *counts, int64_t counts_size, int64_t *lowest, int64_t lowest_size,
                   int64_t *highest, int64_t highest_size, int64_t *totals, int64_t totals_size) {
    enum { MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS, TOTALS };
    if (totals_size < TOTALS) return;
    queues = least(least(queues, fallen_size), least(counts_size, least(lowest_size, highest_size)));
    /* kept at hand: as far as the compiler knows, any of these arrays may share its memory with any other */
    int64_t messages = 0, fillers = 0, markers = 0;
    int64_t last_time = totals[LAST_TIME], newest_time = totals[NEWEST_TIME];
    int64_t all_bits = totals[BITS], all_flags = totals[FLAGS];
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int64_t bits = it->bits, queue = it->queue, offset = it->queue_offset;
        if (bits & BIT_GHOST || !is_index(queue, queues)) continue;
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
        if (numbered && !(bits & BIT_MISNUMBERED)) {
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
}

// largest.h: the k largest of many floats, in the order in which sampling ranks candidates.
#pragma once
#include <stdint.h>

namespace er {

// Larger value first, then smaller id: one integer orders candidates. -0 counts as 0.
inline uint64_t key_of(float v, int64_t id) {
    v = v + 0.0f;
    uint32_t u;
    __builtin_memcpy(&u, &v, 4);
    u = (u & 0x80000000u) ? ~u : (u | 0x80000000u);
    return ((uint64_t)u << 32) | (0xffffffffu - (uint32_t)id);
}

inline uint32_t key_id(uint64_t key) { return 0xffffffffu - (uint32_t)key; }

// Keeps the k largest keys pushed, the smallest of them at the root.
struct Largest {
    uint64_t* heap;
    int64_t k, size;

    void sift_down(int64_t end) {
        const uint64_t v = heap[0];
        int64_t i = 0;
        for (int64_t c; (c = 2 * i + 1) < end; i = c) {
            if (c + 1 < end && heap[c + 1] < heap[c]) c++;
            if (heap[c] >= v) break;
            heap[i] = heap[c];
        }
        heap[i] = v;
    }

    void push(uint64_t v) {
        if (size < k) {
            int64_t i = size++;
            for (; i > 0 && v < heap[(i - 1) / 2]; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
            heap[i] = v;
        } else if (heap[0] < v) {
            heap[0] = v;
            sift_down(k);
        }
    }

    // Leaves the keys in descending order.
    void sort() {
        for (int64_t m = size - 1; m > 0; m--) {
            const uint64_t worst = heap[0];
            heap[0] = heap[m];
            heap[m] = worst;
            sift_down(m);
        }
    }
};

}  // namespace er

/* Between the virtual CUDA driver and its CUPTI. */
#include <stdint.h>
enum { VCUDA_KERNEL = 1, VCUDA_COPY, VCUDA_FILL };
struct vcuda_work {
    int what;
    const char *name;
    uint64_t length, start, end, bytes;
    uint32_t correlation, tid, stream, grid[3], block[3];
    const char *path;
};
struct vcuda_sink {
    void (*call)(unsigned id, unsigned tid, uint32_t correlation, uint64_t start, uint64_t end);
    void (*work)(const struct vcuda_work *work);
};
void vcuda_set_sink(const struct vcuda_sink *to);

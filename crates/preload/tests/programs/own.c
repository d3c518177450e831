/* A library with a function of a program's own that has the name of one of the driver's. */
#include <stddef.h>
#include <stdint.h>
int cuMemAllocPitch_v2(uint64_t *p, size_t *pitch, size_t w, size_t h, unsigned e) { (void)p, (void)pitch, (void)w, (void)h, (void)e; return 77; }

/* The two functions of libstdc++ that numpy's core calls, under the versions that it asks for: an old or small root has
 * no libstdc++, and one that runs on glibc 2.17 is nowhere to be had. */
#include <stdlib.h>

void *_Znwm(size_t size);
void _ZdlPv(void *block);

void *_Znwm(size_t size) { /* operator new; without memory C++ would throw, and numpy would end */
    void *block = malloc(size ? size : 1);
    if (!block) abort();
    return block;
}

void _ZdlPv(void *block) { free(block); } /* operator delete */
